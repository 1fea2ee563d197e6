"""Divides a model into the stages that were asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from trainers.config.config import Config
from trainers.inputs.sources import Source
from trainers.pipeline_parallel.layer_graph import LayerGraph
from trainers.pipeline_parallel.partition import (
    cut_at_layers,
    cut_evenly,
    measure_seconds,
)
from trainers.pipeline_parallel.stages import Stage, StagedModel, make_stages

_DEFAULT_NUM_MICRO_BATCHES = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A model in stages.

    Attributes:
      graph: of the model.
      stages: in their order, at least one.
      staged: the model, each stage on its device.
      num_micro_batches: in the pipeline at once.
    """

    graph: LayerGraph
    stages: Sequence[Stage]
    staged: StagedModel
    num_micro_batches: int

    def border_bytes(self, num_examples: int) -> int:
        """Size of all that stages take from other stages, of some examples.

        Without tensors that are as long as the data makes them.
        """
        sizes = {
            id(tensor): (tf.TensorShape(tensor.shape[1:]).num_elements() or 0)
            * tf.as_dtype(tensor.dtype).size
            for call in self.graph.calls
            for tensor in call.outputs
        }
        taken = (name for stage in self.stages for name in stage.inputs)
        return num_examples * sum(sizes.get(name, 0) for name in taken)


def build_pipeline(
    model: keras.Model, config: Config, devices: Sequence[str], source: Source
) -> Pipeline:
    """Divides a model and moves its variables to the devices of their stages.

    Args:
      model: with all its variables.
      config: says into which stages; without, into as many as devices and layers allow.
      devices: one for each stage.
      source: examples to measure layers with.

    Raises:
      UsageError: the model cannot be divided in this way.
    """
    graph = LayerGraph.of(model)
    rounds = config.strategy.gradient_accumulation_steps
    largest = max(config.length.global_batch_size // rounds, 1)
    num_micro_batches = config.strategy.num_micro_batches or min(
        _DEFAULT_NUM_MICRO_BATCHES, largest
    )
    names = config.strategy.layers_that_begin_stages
    if names is not None:
        cuts = cut_at_layers(graph, names)
    else:
        possible = min(len(devices), len(graph.cuts()) + 1)
        count = config.strategy.num_stages or possible
        num_examples = min(max(largest // num_micro_batches, 1), source.num_examples)
        indices = tf.range(num_examples, dtype=tf.int64)
        features, _ = source.read(source.tensors(), indices)
        cuts = cut_evenly(
            graph, lambda: measure_seconds(graph, features, devices[0]), count
        )
    stages = make_stages(graph, cuts, devices)
    return Pipeline(
        graph=graph,
        stages=stages,
        staged=StagedModel(graph, stages),
        num_micro_batches=num_micro_batches,
    )
