"""Arithmetic on what replicas contribute, dense or sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.common.types import Shares


def sum_shares(parts: Sequence[Shares]) -> Shares:
    """The sum of shares of one global batch, computed on one device."""
    return Shares(
        gradients=[
            sum_gradients(gradients)
            for gradients in zip(*(part.gradients for part in parts), strict=True)
        ],
        state=sum_structures([part.state for part in parts]),
        sums=sum_structures([part.sums for part in parts]),
    )


def sum_gradients(parts: Sequence[Any]) -> Any:
    """The sum of one variable's gradients: None if all are None.

    Args:
      parts: tensors of one shape, IndexedSlices of one dense shape, or None.
    """
    if parts[0] is None:
        return None
    if isinstance(parts[0], tf.IndexedSlices):
        # Rows of the same index add up when applied.
        return tf.IndexedSlices(
            tf.concat([part.values for part in parts], axis=0),
            tf.concat([part.indices for part in parts], axis=0),
            parts[0].dense_shape,
        )
    return tf.add_n(parts)


def sum_structures(parts: Sequence[Any]) -> Any:
    """Adds up structures of tensors, leaf by leaf."""
    return tf.nest.map_structure(lambda *values: tf.add_n(values), *parts)


def with_known_shapes(
    gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> list[Any]:
    """Returns the same gradients, each with the static shape of its variable.

    A graph does not know all of them: the gradient of a `Dense` kernel has the shape
    [None, n] if the inputs have three dimensions or more, and that of a gathered tensor
    has no static number of rows. Whoever packs gradients divides a vector by their
    shapes.

    Args:
      gradients: tensors, IndexedSlices or None.
      variables: of each gradient.
    """
    return [
        _with_known_shape(gradient, variable.shape)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _with_known_shape(gradient: Any, shape: tf.TensorShape) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        gradient.values.set_shape([None, *shape[1:]])
        dense_shape = tf.constant(shape.as_list(), tf.int64)
        return tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)
    if gradient is not None:
        gradient.set_shape(shape)
    return gradient


def scaled(value: Any, factor: tf.Tensor) -> Any:
    """A tensor or IndexedSlices times a floating scalar; None stays None."""
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        rows = scaled(value.values, factor)
        return tf.IndexedSlices(rows, value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


def totals(shares: Shares) -> tf.Tensor:
    """One number for each gradient, then for each tensor of layer state: its sum.

    A sum is not finite if a number in it is not, or if they are so large that their
    sum is beyond their type. It reads a tensor once, where that is, and makes none of
    its size, as asking each number would. What has no fractions counts as zero.

    Args:
      shares: of one replica, or of all.

    Returns:
      float64 [gradients + tensors of state].
    """
    values = [*shares.gradients, *tf.nest.flatten(shares.state)]
    return tf.stack([_total(value) for value in values] or tf.zeros([0], tf.float64))


def _total(value: Any) -> tf.Tensor:
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    if value is None or not value.dtype.is_floating:
        return tf.zeros([], tf.float64)
    with tf.device(value.device):
        return tf.cast(tf.reduce_sum(value), tf.float64)


def mean_of_copies(copies: Sequence[tf.Tensor]) -> tf.Tensor:
    """The mean of tensors, computed so that the mean of equal ones is that value.

    In the sum of three equal numbers the last bit may be rounded away.
    """
    first, *others = (tf.convert_to_tensor(copy) for copy in copies)
    if not others:
        return first
    return first + tf.add_n([other - first for other in others]) / len(copies)


def bytes_of(variables: Sequence[tf.Variable]) -> int:
    """Of one copy of each, as they are sent."""
    return sum(v.dtype.size * v.shape.num_elements() for v in variables)
