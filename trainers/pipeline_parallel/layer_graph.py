"""Layer calls of a model in an executable order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import Call, calls_of, flat_inputs


@dataclasses.dataclass(frozen=True, slots=True)
class LayerGraph:
    """Functional or Sequential model as a list of calls.

    Attributes:
      calls: Calls in topological order: each after the calls whose outputs it takes.
      model: The whole model.
      output: Symbolic output of the model.
    """

    calls: Sequence[Call]
    model: keras.Model
    output: keras.KerasTensor

    @classmethod
    def of(cls, model: keras.Model) -> LayerGraph:
        """Returns the graph of a built model, functional or Sequential.

        Raises:
          UsageError: The model is subclassed or has several outputs.
        """
        if not _consists_of_calls(model):
            raise UsageError(
                "--strategy=model_parallel splits a model between its layers, and "
                f"{type(model).__name__} has a call of its own: make it a functional "
                "or Sequential model, or choose another strategy."
            )
        # For a Sequential model these are the outputs of its functional equivalent.
        if len(model.outputs) != 1:
            raise UsageError(
                "--strategy=model_parallel takes models with one output, and this has "
                f"{len(model.outputs)}: choose another strategy."
            )
        (output,) = model.outputs
        return cls(calls_of(keras.Model(model.inputs, output)), model, output)

    def features_by_name(self, features: Any) -> dict[int, tf.Tensor]:
        """Returns features by the `id` of the model's symbolic inputs."""
        flat = flat_inputs(self.model, features)
        return dict(zip(map(id, self.model.inputs), flat, strict=False))

    def cuts(self) -> list[int]:
        """Returns the positions of the calls with which a stage can begin."""
        # Stage 0 begins with call 0, so a cut there would leave it empty.
        closed = {0}
        for first, last in [*self._spans_of_layers(), *self._spans_of_masks()]:
            # A layer's variables are on one device, so all calls of the layer are in
            # one stage. A Keras mask is attached to one tensor object and is missing on
            # a copy on another device.
            closed.update(range(first + 1, last + 1))
        return [index for index in range(len(self.calls)) if index not in closed]

    def _spans_of_layers(self) -> list[tuple[int, int]]:
        """Returns the first and the last call of each layer."""
        positions: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            positions.setdefault(id(call.layer), []).append(index)
        return [(found[0], found[-1]) for found in positions.values()]

    def _spans_of_masks(self) -> list[tuple[int, int]]:
        """Returns the maker and a user of each masked tensor, as positions of calls."""
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
    # A functional model may be subclassed with another `call`.
    tensor = keras.Input([1])
    return type(model).call is type(keras.Model(tensor, tensor)).call
