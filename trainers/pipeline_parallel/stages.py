"""Stages of a model: layers, inputs, outputs and device."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

import keras
import tensorflow as tf

from strategies.common.private_apis.variables import move_variable
from trainers.pipeline_parallel.layer_graph import LayerGraph


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Consecutive layers as a separate model.

    The name of a tensor is the `id` of the symbolic tensor in the whole model.

    Attributes:
      index: Index of the stage, from 0.
      device: Device of the stage's variables and computation.
      model: Keras model from a list of tensors to a tensor or a list of tensors.
      layers: Names of the layers in their order.
      inputs: Names of the tensors that it takes from earlier stages or the model's
        inputs.
      received: Names of the inputs that another stage makes and that get gradients.
      outputs: Names of the tensors that other stages take; for the last stage the
        model's output.
      trainable_variables: Trainable variables, without the variables of earlier stages.
      is_last: True if the stage makes the model's output.
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
        """Returns the outputs for some inputs, in the order of their names."""
        return tf.nest.flatten(self.model(list(inputs), training=training))

    def in_words(self) -> str:
        """Returns the layers and the device on one line."""
        span = " to ".join(dict.fromkeys((self.layers[0], self.layers[-1])))
        numbers = sum(v.value.shape.num_elements() for v in self.trainable_variables)
        device = self.device.removeprefix("/device:")
        return f"stage {self.index} on {device}: {span}, {numbers:,} parameters"


def make_stages(
    graph: LayerGraph, cuts: Sequence[int], devices: Sequence[str]
) -> list[Stage]:
    """Partitions a model and moves its variables to the stages' devices.

    Stages except the first begin at the calls `cuts`. There may be more devices.
    """
    bounds = [0, *cuts, len(graph.calls)]
    stages: list[Stage] = []
    owned: set[int] = set()
    made = {id(tensor) for call in graph.calls for tensor in call.outputs}
    num_stages = len(cuts) + 1
    for index, device in zip(range(num_stages), devices[:num_stages], strict=True):
        begin, end = bounds[index], bounds[index + 1]
        inputs, outputs = _border(graph, begin, end)
        model = keras.Model(inputs, outputs, name=f"stage_{index}")
        # A variable that several stages share belongs to the first of them.
        own = [v for v in model.variables if id(v) not in owned]
        owned.update(map(id, own))
        # The optimizer, which is built later, places its variables on the same devices.
        for variable in own:
            move_variable(variable, device)
        stages.append(
            Stage(
                index=index,
                device=device,
                model=model,
                layers=list(
                    dict.fromkeys(call.layer.name for call in graph.calls[begin:end])
                ),
                inputs=list(map(id, inputs)),
                # Integer tensors have no gradient.
                received={
                    id(tensor)
                    for tensor in inputs
                    if id(tensor) in made and tf.as_dtype(tensor.dtype).is_floating
                },
                outputs=list(map(id, outputs)),
                trainable_variables=[v for v in own if v.trainable],
                is_last=index == len(cuts),
            )
        )
    return stages


def _border(
    graph: LayerGraph, begin: int, end: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Returns the tensors that enter and leave the stage calls[begin:end].

    Each tensor goes directly to the stages that take it, not through the stages
    between.
    """
    calls = graph.calls[begin:end]
    made = _unique(tensor for call in calls for tensor in call.outputs)
    taken = _unique(tensor for call in calls for tensor in call.inputs)
    own = set(map(id, made))
    needed = {id(tensor) for call in graph.calls[end:] for tensor in call.inputs}
    # No later call takes the model's output.
    needed.add(id(graph.output))
    return (
        [tensor for tensor in taken if id(tensor) not in own],
        [tensor for tensor in made if id(tensor) in needed],
    )


def _unique(tensors: Iterable[keras.KerasTensor]) -> list[keras.KerasTensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
