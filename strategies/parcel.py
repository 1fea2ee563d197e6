"""Packs a list of dense and sparse values into few tensors, and unpacks their sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """How a list of values is packed into components, and what is in each.

    The dense values of a type are one vector, because each tensor that goes from one
    task to another costs a message. A sparse value is two components, its indices
    and its rows.

    Attributes:
      kinds: of each value whether it is sparse, its type and its shape.
    """

    kinds: Sequence[tuple[bool, tf.DType, tuple[int, ...]]]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Parcel:
        return cls(
            [
                (isinstance(value, tf.IndexedSlices), value.dtype, tuple(value.shape))
                for value in values
            ]
        )

    def _dense(self) -> dict[tf.DType, list[int]]:
        by_type: dict[tf.DType, list[int]] = {}
        for index, (is_sparse, dtype, _) in enumerate(self.kinds):
            if not is_sparse:
                by_type.setdefault(dtype, []).append(index)
        return by_type

    def _sparse(self) -> list[int]:
        return [
            index for index, (is_sparse, _, _) in enumerate(self.kinds) if is_sparse
        ]

    def dtypes(self) -> list[tf.DType]:
        sparse = [(tf.int64, self.kinds[index][1]) for index in self._sparse()]
        return [*self._dense(), *(dtype for pair in sparse for dtype in pair)]

    def shapes(self) -> list[tf.TensorShape]:
        """Of the components; how many rows a sparse value has is not known."""
        shapes = [tf.TensorShape([self._length(dtype)]) for dtype in self._dense()]
        for index in self._sparse():
            row = self.kinds[index][2][1:]
            shapes += [tf.TensorShape([None]), tf.TensorShape([None, *row])]
        return shapes

    def filled(self, value: float) -> list[tf.Tensor]:
        """Components with `value` in all dense floating places, and no sparse rows."""
        components = []
        for dtype in self._dense():
            filling = value if dtype.is_floating else 0
            components.append(tf.fill([self._length(dtype)], tf.cast(filling, dtype)))
        for index in self._sparse():
            _, dtype, shape = self.kinds[index]
            components += [tf.zeros([0], tf.int64), tf.zeros([0, *shape[1:]], dtype)]
        return components

    def pack(self, values: Sequence[Any]) -> list[tf.Tensor]:
        components = [
            tf.concat([tf.reshape(values[index], [-1]) for index in indices], axis=0)
            for indices in self._dense().values()
        ]
        for index in self._sparse():
            slices = values[index]
            components += [tf.cast(slices.indices, tf.int64), slices.values]
        return components

    def add(
        self, totals: Sequence[tf.Tensor], parts: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Dense vectors are added, sparse rows put behind each other."""
        num_dense = len(self._dense())
        pairs = list(zip(totals, parts, strict=True))
        return [
            *(total + part for total, part in pairs[:num_dense]),
            *(tf.concat(pair, axis=0) for pair in pairs[num_dense:]),
        ]

    def unpack(self, components: Sequence[tf.Tensor]) -> list[Any]:
        values: list[Any] = [None] * len(self.kinds)
        remaining = iter(components)
        for indices in self._dense().values():
            sizes = [int(np.prod(self.kinds[index][2])) for index in indices]
            parts = tf.split(next(remaining), sizes)
            for index, part in zip(indices, parts, strict=True):
                values[index] = tf.reshape(part, self.kinds[index][2])
        for index in self._sparse():
            shape = tf.constant(self.kinds[index][2], tf.int64)
            rows, slices = next(remaining), next(remaining)
            values[index] = tf.IndexedSlices(slices, rows, shape)
        return values

    def _length(self, dtype: tf.DType) -> int:
        return sum(
            int(np.prod(shape))
            for is_sparse, kind, shape in self.kinds
            if kind == dtype and not is_sparse
        )
