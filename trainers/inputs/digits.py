"""Handwritten digits: 1,797 images of 8x8 pixels that scikit-learn carries along.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49.
"""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np

from trainers.config.data import DataConfig
from trainers.inputs.sources import Data, hold_out

# What `sklearn.datasets.load_digits` reads. To import that takes 0.7 s of processor
# time, in each worker.
_TABLE = pathlib.Path("datasets/data/digits.csv.gz")


def load(config: DataConfig) -> Data:
    """Images [8, 8, 1] with values from 0 to 1, ten classes."""
    table = np.loadtxt(_folder_of("sklearn") / _TABLE, delimiter=",")
    images = (table[:, :-1] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    return hold_out(images, labels, config.eval_fraction, num_classes=10)


def _folder_of(package: str) -> pathlib.Path:
    """Where a package is installed, found without importing it.

    Raises:
      ModuleNotFoundError: it is not.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return pathlib.Path(spec.origin).parent
