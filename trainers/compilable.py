"""Whether XLA can compile a model, found out before a run begins."""

from __future__ import annotations

import keras

from models.embedding import ShardedEmbedding
from strategies.base import Batch
from strategies.library_internals import flat_layers
from strategies.settings import UsageError
from trainers.config import Config
from trainers.layer_state import sums_over_replicas
from trainers.refusals import refusal_of
from trainers.step import TrainStep


def check_layers(model: keras.Model) -> None:
    """Refuses layers of which it is known that they cannot be compiled.

    Raises:
      UsageError: there is one.
    """
    for layer in flat_layers(model):
        if isinstance(layer, ShardedEmbedding):
            reason = "XLA would need its whole table in every step, not the rows in use"
        elif sums_over_replicas(layer):
            reason = "its sum over replicas cannot be compiled"
        else:
            continue
        raise UsageError(
            f"--jit_compile does not fit layer {layer.name!r}: {reason}; leave "
            "--jit_compile out."
        )


def check_step(step: TrainStep, batch: Batch, config: Config) -> None:
    """Compiles a step, without running it.

    Args:
      step: of the model.
      batch: a replica's rows of a step.
      config: of the run.

    Raises:
      UsageError: there is no compiling it.
    """
    try:
        step.compile_for(batch)
    except Exception as error:
        refusal = refusal_of(error, config)
        if refusal is None:
            raise
        raise refusal from error
