"""Layout of a worker's values for one server, as sent and as summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.gradient_compression.method import Method
from strategies.ps.tensor_packing import GradientPacking


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


class ElementLayout:
    """Layout of the values of one server in the components of a queue's element.

    A server sums gradients, so that it decodes the compressed ones first.
    """

    def __init__(self, values: Sequence[Any]):
        """Takes types and shapes from traced values.

        Args:
          values: Tensors, IndexedSlices or compressed gradients.
        """
        # Without the tensors, which belong to the worker's graph.
        self._compressed = [
            dataclasses.replace(value, parts=[None] * len(value.parts))
            if isinstance(value, CompressedGradient)
            else None
            for value in values
        ]
        self._sent = GradientPacking.of(_flat(values))
        self.summed = GradientPacking.of(
            [v.spec if isinstance(v, CompressedGradient) else v for v in values]
        )

    def dtypes(self) -> list[tf.DType]:
        """Returns the types of the components that are sent."""
        return self._sent.dtypes()

    def shapes(self) -> list[tf.TensorShape]:
        """Returns the shapes of the components that are sent."""
        return self._sent.shapes()

    def filled(self, value: float) -> list[tf.Tensor]:
        """Returns components to send, with `value` in the floating ones."""
        return self._sent.filled(value)

    def pack(self, values: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the components of values of this layout."""
        return self._sent.pack(_flat(values))

    def decoded(self, components: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns components as they are summed, from components as sent."""
        if not any(self._compressed):
            return components
        received = iter(self._sent.unpack(components))
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
