"""Training step of a pipeline of stages.

The graph of a step contains every stage's work on every micro-batch. Its only edges
between pieces are their data and the order of pieces within a stage. So stages run in
parallel, and each runs one piece at a time.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import Objective
from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs
from strategies.inner_loop.reduction import (
    sum_gradients,
    sum_structures,
    with_known_shapes,
)
from strategies.inner_loop.results import PIPELINE_SECONDS, STAGE_BUSY_SECONDS
from strategies.inner_loop.sharding import take_micro_batch
from trainers.model.layer_state import LayerState
from trainers.model.optimizers.loss_scale import scaled_loss, unscaled
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.seeds import seed_states
from trainers.model.train_step import StepSettings
from trainers.pipeline_parallel.build import Pipeline
from trainers.pipeline_parallel.schedule import Piece, order_of_pieces
from trainers.pipeline_parallel.stage_step import (
    Cotangents,
    Forward,
    StageClock,
    StageRun,
)


class PipelineStep:
    """Replica outputs of one training step of a pipeline. Satisfies `ReplicaFunction`.

    The outputs equal the outputs of `TrainStep`: every micro-batch's losses are divided
    by the number of examples in the global batch, and the contributions of
    micro-batches are summed.
    """

    def __init__(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        objective: Objective,
        layer_state: LayerState,
        settings: StepSettings,
    ):
        """Creates the stages' functions; traces nothing."""
        states = seed_states(model)
        self._model = model
        self._pipeline = pipeline
        self._sparse_gradients = settings.sparse_gradients
        self._loss_scale = settings.loss_scale
        # Traced once for all micro-batches, and their gradients once, too.
        self._forwards = []
        numbers = None
        for stage in pipeline.stages:
            numbers = StepRandomNumbers(settings.seed, settings.random_numbers, numbers)
            forward = Forward(stage, model, objective, layer_state, states, numbers)
            self._forwards.append(
                tf.function(
                    forward,
                    autograph=False,
                    jit_compile=settings.jit_compile or None,
                )
            )
        self._clocks = [StageClock(stage.device) for stage in pipeline.stages]

    def with_current_weights(self) -> ReplicaFunction:
        """Returns the step itself; each stage reads the variables on its own device."""
        return self

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        count = self._pipeline.num_microbatches
        parts = [take_micro_batch(batch, m, count, count) for m in range(count)]
        runs = [
            StageRun(stage, forward, clock, self._sparse_gradients)
            for stage, forward, clock in zip(
                self._pipeline.stages, self._forwards, self._clocks, strict=True
            )
        ]
        values = [
            self._pipeline.graph.features_by_name(part.features) for part in parts
        ]
        cotangents: list[Cotangents] = [{} for _ in parts]
        scale = None if self._loss_scale is None else self._loss_scale.read()
        for piece in order_of_pieces(len(runs), len(parts)):
            run, index = runs[piece.stage], piece.micro_batch
            with tf.name_scope(_name_of(piece)), tf.device(run.stage.device):
                if piece.is_forward:
                    run.forward(index, parts[index], values[index])
                else:
                    run.backward(index, cotangents[index], scale)
        outputs = self._outputs(runs)
        _, sums = scaled_loss(outputs.sums["loss"], dict(outputs.sums), scale, batch)
        return outputs._replace(gradients=unscaled(outputs.gradients, scale), sums=sums)

    def _outputs(self, runs: Sequence[StageRun]) -> ReplicaOutputs:
        gradients = []
        for variable in self._model.trainable_variables:
            key = variable.value.ref()
            # A variable shared by several stages has a gradient from each of them.
            found = [run.gradients[key] for run in runs if key in run.gradients]
            gradients.append(sum_gradients(found) if found else None)
        variables = [v.value for v in self._model.trainable_variables]
        gradients = with_known_shapes(gradients, variables)
        sums: dict[str, tf.Tensor] = {}
        for run in runs:
            for name, value in sum_structures(run.sums).items():
                sums[name] = sums[name] + value if name in sums else value
        state: dict[str, Any] = {}
        for run in runs:
            for kind, found in sum_structures(run.state).items():
                # Each stage has other variables, so the entries of stages do not
                # overlap.
                state[kind] = {**state.get(kind, {}), **found}
        return ReplicaOutputs(
            gradients=gradients, state=state, sums={**sums, **_times(runs)}
        )


def _times(runs: Sequence[StageRun]) -> dict[str, tf.Tensor]:
    """Returns the busy seconds of each stage and the seconds of the whole pipeline."""
    times = {
        f"{STAGE_BUSY_SECONDS}{run.stage.index}": tf.add_n(
            [end - start for start, end in run.intervals]
        )
        for run in runs
    }
    first = tf.reduce_min([run.intervals[0][0] for run in runs])
    last = tf.reduce_max([run.intervals[-1][1] for run in runs])
    return {**times, PIPELINE_SECONDS: last - first}


def _name_of(piece: Piece) -> str:
    direction = "forward" if piece.is_forward else "backward"
    return f"stage_{piece.stage}_{direction}_{piece.micro_batch}"
