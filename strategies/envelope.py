"""Several tensors in one, where each costs whoever fetches it a message of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


class Envelope:
    """Puts tensors of any shape into one vector, and takes them out of it again."""

    def __init__(self) -> None:
        """Empty. Which types and ranks there are is known when it is traced."""
        self._kinds: list[tuple[tf.DType, int]] = []

    def seal(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """One vector of float64, in which whole numbers are exact up to 2 ** 53.

        Args:
          tensors: of known rank; how long each dimension is may differ from call to
            call.
        """
        self._kinds = [(tensor.dtype, tensor.shape.rank) for tensor in tensors]
        shapes = [tf.shape(tensor) for tensor in tensors]
        values = [tf.reshape(tensor, [-1]) for tensor in tensors]
        return tf.concat([tf.cast(v, tf.float64) for v in (*shapes, *values)], axis=0)

    def open(self, vector: np.ndarray) -> list[np.ndarray]:
        """What was put into it."""
        ranks = [rank for _, rank in self._kinds]
        dimensions = iter(vector[: sum(ranks)].astype(np.int64))
        shapes = [[int(next(dimensions)) for _ in range(rank)] for rank in ranks]
        sizes = [int(np.prod(shape)) for shape in shapes]
        parts = np.split(vector[sum(ranks) :], np.cumsum(sizes)[:-1])
        return [
            part.reshape(shape).astype(dtype.as_numpy_dtype)
            for part, shape, (dtype, _) in zip(parts, shapes, self._kinds, strict=True)
        ]
