"""Handwritten digits: 1,797 images of 8x8 pixels from scikit-learn.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49.
"""

import importlib.metadata

import numpy as np

from trainers.config.data import DataConfig
from trainers.inputs.sources import Data, hold_out

# The file that `sklearn.datasets.load_digits` reads. Importing that function takes 0.7
# s of processor time in each worker.
_TABLE = "sklearn/datasets/data/digits.csv.gz"


def load(config: DataConfig) -> Data:
    """Returns images [8, 8, 1] with values from 0 to 1, in ten classes."""
    package = importlib.metadata.distribution("scikit-learn")
    table = np.loadtxt(str(package.locate_file(_TABLE)), delimiter=",")
    # Pixels are from 0 to 16; the last column is the label.
    images = (table[:, :-1] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    return hold_out(images, labels, config.eval_fraction, num_classes=10)
