"""Arithmetic on what replicas contribute, dense or sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def scaled(value: Any, factor: tf.Tensor) -> Any:
    """A tensor or IndexedSlices times a floating scalar; None stays None."""
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        rows = scaled(value.values, factor)
        return tf.IndexedSlices(rows, value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


def mean_of_copies(copies: Sequence[tf.Tensor]) -> tf.Tensor:
    """The mean of tensors, computed so that the mean of equal ones is that value.

    In the sum of three equal numbers the last bit may be rounded away.
    """
    first, *others = (tf.convert_to_tensor(copy) for copy in copies)
    if not others:
        return first
    return first + tf.add_n([other - first for other in others]) / len(copies)
