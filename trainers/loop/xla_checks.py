"""Checks that XLA can compile the step of a replica."""

from __future__ import annotations

import keras

from models.embedding import ShardedEmbedding
from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from strategies.common.types import Batch
from trainers.loop.parts import TrainingParts
from trainers.model.layer_state import sums_over_replicas
from trainers.model.train_step import TrainStep
from trainers.model.xla_errors import compile_error
from trainers.pipeline_parallel.step import PipelineStep
from trainers.user_code.few_examples import few_examples


def check_compilable(parts: TrainingParts, step: TrainStep | PipelineStep) -> None:
    """Checks that XLA can compile the step of a replica.

    Args:
      parts: Parts of the run.
      step: Training step of one replica.

    Raises:
      UsageError: XLA cannot compile it.
    """
    check_layers(parts.model)
    # XLA reports an error in a pipeline stage only when the stage runs.
    if isinstance(step, TrainStep):
        rows = parts.order.global_batch_size // parts.strategy.num_replicas
        # Not of the training's own batches: a generator gives each of them once.
        check_step(step, few_examples(parts.data.to_look_at, max(rows, 1)))


def check_layers(model: keras.Model) -> None:
    """Rejects layers that XLA is known not to compile.

    Args:
      model: Model with all its layers built.

    Raises:
      UsageError: The model has such a layer.
    """
    for layer in flat_layers(model):
        if isinstance(layer, ShardedEmbedding):
            reason = "XLA would need its whole table in every step, not the rows in use"
        elif sums_over_replicas(layer):
            reason = "its sum over replicas cannot be compiled"
        else:
            continue
        raise UsageError(
            f"--jit_compile=on does not fit layer {layer.name!r}: {reason}; leave "
            "it out."
        )


def check_step(step: TrainStep, batch: Batch) -> None:
    """Compiles a step, without running it.

    Args:
      step: The training step of one replica.
      batch: The shard of one replica.

    Raises:
      UsageError: XLA cannot compile the step.
    """
    try:
        step.compile_for(batch)
    except Exception as error:
        refusal = compile_error(str(error))
        if refusal is None:
            raise
        raise refusal from error
