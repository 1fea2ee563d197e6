"""Check that XLA can compile the step of a replica."""

from __future__ import annotations

from models.embedding import ShardedEmbedding
from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from trainers.loop.parts import TrainingParts
from trainers.model.layer_state import sums_over_replicas
from trainers.model.train_step import TrainStep
from trainers.model.xla_errors import compile_error
from trainers.pipeline_parallel.step import PipelineStep
from trainers.user_code.few_examples import few_examples


def check_compilable(parts: TrainingParts, step: TrainStep | PipelineStep) -> None:
    """Checks that XLA can compile the training step of a replica, and runs nothing.

    Raises:
      UsageError: XLA cannot compile it, or would compute more than the step needs.
    """
    for layer in flat_layers(parts.model):
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
    # XLA reports an error in a pipeline stage only when the stage runs.
    if not isinstance(step, TrainStep):
        return
    rows = parts.order.global_batch_size // parts.strategy.num_replicas
    # Not of the training's own batches: a generator gives each of them once.
    batch = few_examples(parts.data.to_look_at, max(rows, 1))
    try:
        step.compile_for(batch)
    except Exception as error:
        refusal = compile_error(str(error))
        if refusal is None:
            raise
        raise refusal from error
