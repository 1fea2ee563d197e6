"""Layout of a worker's values for one server, as sent and as summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.gradient_compression.method import Method


@dataclasses.dataclass(frozen=True, slots=True)
class CompressedGradient:
    """A gradient as a worker sends it.

    Attributes:
      parts: Tensors from `Method.encode`.
      spec: Shape and type of the gradient.
      method: Method that decodes the parts.
    """

    parts: Sequence[tf.Tensor]
    spec: tf.TensorSpec
    method: Method


class _Kind(NamedTuple):
    is_sparse: bool
    dtype: tf.DType
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ComponentLayout:
    """Layout of a list of values in a list of components.

    The dense values of a type are one vector, because each tensor that goes from one
    task to another costs a message. A sparse value is two components, its indices
    and its rows.
    """

    kinds: Sequence[_Kind]

    @classmethod
    def of(cls, values: Sequence[Any]) -> ComponentLayout:
        return cls(
            [
                _Kind(isinstance(v, tf.IndexedSlices), v.dtype, tuple(v.shape))
                for v in values
            ]
        )

    def _dense(self) -> dict[tf.DType, list[int]]:
        by_type: dict[tf.DType, list[int]] = {}
        for index, kind in enumerate(self.kinds):
            if not kind.is_sparse:
                by_type.setdefault(kind.dtype, []).append(index)
        return by_type

    def _size(self, index: int) -> int:
        """Returns the number of elements of a dense value."""
        return int(np.prod(self.kinds[index].shape))

    def _sparse(self) -> list[int]:
        return [index for index, kind in enumerate(self.kinds) if kind.is_sparse]

    def dtypes(self) -> list[tf.DType]:
        sparse = [(tf.int64, self.kinds[index].dtype) for index in self._sparse()]
        return [*self._dense(), *(dtype for pair in sparse for dtype in pair)]

    def shapes(self) -> list[tf.TensorShape]:
        """Returns the components' shapes; sparse values have any number of rows."""
        shapes = [
            tf.TensorShape([sum(map(self._size, indices))])
            for indices in self._dense().values()
        ]
        for index in self._sparse():
            row = self.kinds[index].shape[1:]
            shapes += [tf.TensorShape([None]), tf.TensorShape([None, *row])]
        return shapes

    def filled(self, value: float) -> list[tf.Tensor]:
        """Returns components without sparse rows, and with `value` in floating ones."""
        components = []
        for dtype, indices in self._dense().items():
            filling = tf.cast(value if dtype.is_floating else 0, dtype)
            components.append(tf.fill([sum(map(self._size, indices))], filling))
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
        """Returns the sum of two lists of components."""
        # Dense vectors come first and are added. Sparse rows are concatenated.
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
            parts = tf.split(next(remaining), list(map(self._size, indices)))
            for index, part in zip(indices, parts, strict=True):
                values[index] = tf.reshape(part, self.kinds[index].shape)
        for index in self._sparse():
            shape = tf.constant(self.kinds[index].shape, tf.int64)
            rows, slices = next(remaining), next(remaining)
            values[index] = tf.IndexedSlices(slices, rows, shape)
        return values


class ElementLayout:
    """Layout of the values of one server in the components of a queue's element.

    A server sums gradients, so that it decodes the compressed ones first: components
    have one layout as they are sent, and another one as they are summed.
    """

    def __init__(self, values: Sequence[Any]):
        """Takes types and shapes from traced values."""
        # Without the tensors, which belong to the worker's graph.
        self._compressed = [
            dataclasses.replace(value, parts=[None] * len(value.parts))
            if isinstance(value, CompressedGradient)
            else None
            for value in values
        ]
        self.sent = ComponentLayout.of(_flat(values))
        self.summed = ComponentLayout.of(
            [v.spec if isinstance(v, CompressedGradient) else v for v in values]
        )

    def pack(self, values: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the components of values of this layout."""
        return self.sent.pack(_flat(values))

    def decoded(self, components: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns components as they are summed, from components as sent."""
        if not any(self._compressed):
            return components
        received = iter(self.sent.unpack(components))
        values = []
        for compressed in self._compressed:
            if compressed is None:
                values.append(next(received))
                continue
            parts = [next(received) for _ in compressed.parts]
            values.append(compressed.method.decode(parts, compressed.spec))
        return self.summed.pack(values)


def _flat(values: Sequence[Any]) -> list[Any]:
    """Returns values with the parts of each compressed gradient in its place."""
    flat: list[Any] = []
    for value in values:
        flat += value.parts if isinstance(value, CompressedGradient) else [value]
    return flat
