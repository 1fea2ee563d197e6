"""The stages of a model: which layers, which tensors go in and out, on which device."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis import Call, move_variable
from trainers.pipeline_parallel.layer_graph import LayerGraph


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Layers that follow each other, as a model of their own.

    A tensor is named by the `id` of the symbolic tensor in the whole model.

    Attributes:
      index: from 0.
      device: where its variables are and it computes.
      model: from a list of tensors to a tensor or a list of them.
      layers: names of its layers, in their order.
      inputs: tensors it takes, from any stage before or from the model's inputs.
      received: those of them that another stage makes and that gradients go back to.
      outputs: tensors it makes that others take; of the last stage the model's own.
      trainable_variables: those of them that no stage before it has as well.
      is_last: whether it makes the model's output.
    """

    index: int
    device: str
    model: keras.Model
    layers: Sequence[str]
    inputs: Sequence[int]
    received: Collection[int]
    outputs: Sequence[int]
    trainable_variables: Sequence[keras.Variable]
    is_last: bool

    def run(self, inputs: Sequence[tf.Tensor], training: bool) -> list[tf.Tensor]:
        """Outputs from inputs, in the order of their names."""
        return tf.nest.flatten(self.model(list(inputs), training=training))

    def in_words(self) -> str:
        """Its layers and device on one line."""
        span = " to ".join(dict.fromkeys((self.layers[0], self.layers[-1])))
        numbers = sum(v.value.shape.num_elements() for v in self.trainable_variables)
        device = self.device.removeprefix("/device:")
        return f"stage {self.index} on {device}: {span}, {numbers:,} parameters"


def make_stages(
    graph: LayerGraph, cuts: Sequence[int], devices: Sequence[str]
) -> list[Stage]:
    """Divides a model and moves its variables.

    Args:
      graph: of the model.
      cuts: first call of every stage but the first.
      devices: of each stage, at least as many as there are.
    """
    bounds = [0, *cuts, len(graph.calls)]
    stages: list[Stage] = []
    owned: set[int] = set()
    made = {id(tensor) for call in graph.calls for tensor in call.outputs}
    for index, device in zip(range(len(cuts) + 1), devices, strict=False):
        begin, end = bounds[index], bounds[index + 1]
        inputs, outputs = _border(graph, begin, end)
        model = keras.Model(inputs, outputs, name=f"stage_{index}")
        own = [v for v in model.variables if id(v) not in owned]
        owned.update(map(id, own))
        for variable in own:
            move_variable(variable, device)
        stages.append(
            Stage(
                index=index,
                device=device,
                model=model,
                layers=_layers(graph.calls[begin:end]),
                inputs=list(map(id, inputs)),
                received={id(t) for t in inputs if id(t) in made and _is_floating(t)},
                outputs=list(map(id, outputs)),
                trainable_variables=[v for v in own if v.trainable],
                is_last=index == len(cuts),
            )
        )
    return stages


def _border(
    graph: LayerGraph, begin: int, end: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """What crosses into a stage and out of it. Each tensor goes straight to its users.

    Args:
      graph: of the model.
      begin: the stage's first call.
      end: the first call after it.
    """
    calls = graph.calls[begin:end]
    made = _unique(tensor for call in calls for tensor in call.outputs)
    taken = _unique(tensor for call in calls for tensor in call.inputs)
    own = set(map(id, made))
    needed = {id(tensor) for call in graph.calls[end:] for tensor in call.inputs}
    needed.add(id(graph.output))
    return (
        [tensor for tensor in taken if id(tensor) not in own],
        [tensor for tensor in made if id(tensor) in needed],
    )


def _is_floating(tensor: keras.KerasTensor) -> bool:
    return tf.as_dtype(tensor.dtype).is_floating


def _layers(calls: Sequence[Call]) -> list[str]:
    """Names, each once."""
    return list(dict.fromkeys(call.layer.name for call in calls))


def _unique(tensors: Iterable[keras.KerasTensor]) -> list[keras.KerasTensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


class StagedModel:
    """The whole model, each stage on its device. Is called like a Keras model."""

    def __init__(self, graph: LayerGraph, stages: Sequence[Stage]):
        self._inputs = [id(tensor) for tensor in graph.inputs]
        self._stages = stages

    def features_by_name(self, features: Any) -> dict[int, tf.Tensor]:
        """The inputs of the model, as stages name them."""
        return dict(zip(self._inputs, tf.nest.flatten(features), strict=True))

    def __call__(self, features: Any, training: bool) -> Any:
        values = self.features_by_name(features)
        outputs: list[tf.Tensor] = []
        for stage in self._stages:
            with tf.device(stage.device):
                outputs = stage.run([values[name] for name in stage.inputs], training)
            values.update(zip(stage.outputs, outputs, strict=True))
        return outputs[0]
