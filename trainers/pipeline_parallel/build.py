"""Construction of the pipeline of a model."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.models import packed_output
from trainers.config.config import Config
from trainers.inputs.sources import Data, first_examples
from trainers.pipeline_parallel.layer_graph import LayerGraph
from trainers.pipeline_parallel.partition import (
    cut_at_layers,
    cut_evenly,
    measure_seconds,
)
from trainers.pipeline_parallel.stages import Stage, make_stages

_DEFAULT_NUM_MICRO_BATCHES = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """Model partitioned into stages; callable like a Keras model.

    Attributes:
      graph: Layer graph of the model.
      stages: Stages in their order, at least one.
      num_microbatches: Number of micro-batches of a step.
    """

    graph: LayerGraph
    stages: Sequence[Stage]
    num_microbatches: int

    def __call__(self, features: Any, training: bool) -> Any:
        """Runs one stage after the other, without micro-batches, as for evaluation."""
        values = self.graph.features_by_name(features)
        outputs: list[tf.Tensor] = []
        for stage in self.stages:
            with tf.device(stage.device):
                outputs = stage.run([values[name] for name in stage.inputs], training)
            values.update(zip(stage.outputs, outputs, strict=True))
        return packed_output(self.graph.model, outputs[0])

    def border_bytes(self, num_examples: int) -> int:
        """Returns the bytes that stages receive from other stages.

        Tensors whose size depends on the data are not counted.
        """
        sizes = {
            # num_elements() is None for a tensor of unknown length.
            id(tensor): (tf.TensorShape(tensor.shape[1:]).num_elements() or 0)
            * tf.as_dtype(tensor.dtype).size
            for call in self.graph.calls
            for tensor in call.outputs
        }
        taken = (name for stage in self.stages for name in stage.inputs)
        return num_examples * sum(sizes.get(name, 0) for name in taken)


def build_pipeline(
    model: keras.Model, config: Config, devices: Sequence[str], data: Data
) -> Pipeline:
    """Partitions a model and moves its variables to the devices of their stages.

    By default there are as many stages as devices and layers allow.

    Raises:
      UsageError: The model cannot be partitioned in this way.
    """
    graph = LayerGraph.of(model)
    rounds = config.strategy.gradient_accumulation_steps
    # Rows of one accumulation step, which the pipeline divides into micro-batches.
    largest = max(config.length.global_batch_size // rounds, 1)
    num_microbatches = config.strategy.num_microbatches or min(
        _DEFAULT_NUM_MICRO_BATCHES, largest
    )
    names = config.strategy.layers_that_begin_stages
    if names is not None:
        cuts = cut_at_layers(graph, names)
    else:
        possible = min(len(devices), len(graph.cuts()) + 1)
        count = config.strategy.num_stages or possible
        # Layers are measured with as many rows as a micro-batch has.
        num_examples = max(largest // num_microbatches, 1)
        features, _ = first_examples(data.sample_source, num_examples)
        # Layers are only measured if there are at least two stages.
        cuts = cut_evenly(
            graph, lambda: measure_seconds(graph, features, devices[0]), count
        )
    stages = make_stages(graph, cuts, devices)
    return Pipeline(graph=graph, stages=stages, num_microbatches=num_microbatches)
