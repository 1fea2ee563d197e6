"""Handwritten digits: 1,797 images of 8x8 pixels that scikit-learn carries along.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from trainers.config import DataConfig
from trainers.inputs.data import Data, hold_out


def load(config: DataConfig) -> Data:
    """Images [8, 8, 1] with values from 0 to 1, ten classes."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int64)
    return hold_out(images, labels, config.eval_fraction, num_classes=10)
