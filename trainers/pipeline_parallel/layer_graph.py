"""The calls of layers that a model consists of, in an order in which they can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras

from strategies.common.errors import UsageError
from strategies.common.private_apis import Call, calls_of


@dataclasses.dataclass(frozen=True, slots=True)
class LayerGraph:
    """A functional or Sequential model as a list.

    Attributes:
      calls: each after those whose outputs it takes.
      inputs: of the model, symbolic.
      output: of the model, symbolic.
    """

    calls: Sequence[Call]
    inputs: Sequence[keras.KerasTensor]
    output: keras.KerasTensor

    @classmethod
    def of(cls, model: keras.Model) -> LayerGraph:
        """Reads a model that is built.

        Raises:
          UsageError: it is not made of connected layers, or has several outputs.
        """
        if not _consists_of_calls(model):
            raise UsageError(
                f"--strategy=model_parallel splits a model between its layers, and "
                f"{type(model).__name__} has a call of its own: make it a functional "
                "or Sequential model, or choose another strategy."
            )
        # Of a Sequential model this is the functional one with the same layers.
        if len(model.outputs) != 1:
            raise UsageError(
                "--strategy=model_parallel takes models with one output, and this has "
                f"{len(model.outputs)}: choose another strategy."
            )
        (output,) = model.outputs
        return cls(calls_of(keras.Model(model.inputs, output)), model.inputs, output)

    def cuts(self) -> list[int]:
        """Calls with which a stage can begin, by their position.

        A layer that is called several times has its variables on one device, so that
        all its calls are in one stage. A mask goes along with a tensor only as far as
        that is the same tensor, which it is not on another device.
        """
        closed = {0}
        for first, last in [*self._spans_of_layers(), *self._spans_of_masks()]:
            closed.update(range(first + 1, last + 1))
        return [index for index in range(len(self.calls)) if index not in closed]

    def _spans_of_layers(self) -> list[tuple[int, int]]:
        """First and last call of each layer."""
        positions: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            positions.setdefault(id(call.layer), []).append(index)
        return [(found[0], found[-1]) for found in positions.values()]

    def _spans_of_masks(self) -> list[tuple[int, int]]:
        """From each tensor with a mask to the last call that takes it."""
        masked = {
            id(tensor): index
            for index, call in enumerate(self.calls)
            if call.is_masked
            for tensor in call.outputs
        }
        return [
            (masked[id(tensor)], index)
            for index, call in enumerate(self.calls)
            for tensor in call.inputs
            if id(tensor) in masked
        ]


def _consists_of_calls(model: keras.Model) -> bool:
    if isinstance(model, keras.Sequential):
        return type(model).call is keras.Sequential.call
    # A functional model may have been subclassed to change what it does.
    tensor = keras.Input([1])
    return type(model).call is type(keras.Model(tensor, tensor)).call
