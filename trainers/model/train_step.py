"""Replica step: loss and gradient of one shard."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import Objective, Predict
from strategies.common.types import Batch, Read, ReplicaFunction, ReplicaOutputs
from strategies.inner_loop.reduction import with_known_shapes
from strategies.inner_loop.totals import WithTotals
from trainers.model.layer_state import LayerState
from trainers.model.loss_sums import reported, weighted_sums, with_layer_losses
from trainers.model.optimizers.loss_scale import LossScale, scaled_loss, unscaled
from trainers.model.random_numbers.of_step import StepRandomNumbers
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers
from trainers.model.random_numbers.seeds import seed_states
from trainers.model.sparse_gradients import as_dense, embeddings_of
from trainers.model.synchronized_rows import SynchronizedRows


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """Settings of a step, whether one device or several stages compute it.

    Attributes:
      seed: Seed of the run.
      random_numbers: Replacement of Keras's random numbers; None to keep them.
      sparse_gradients: True if gradients of embeddings hold the used rows only.
      jit_compile: True if XLA compiles the computation of a replica, or of each stage.
      loss_scale: Factor of the loss that is differentiated; None for one.
    """

    seed: int
    random_numbers: ReplayedRandomNumbers | None = None
    sparse_gradients: bool = True
    jit_compile: bool = False
    loss_scale: LossScale | None = None


class TrainStep:
    """Replica outputs of one training step. Satisfies `ReplicaFunction`.

    The loss is summed over the replica's examples and divided by the number of examples
    in the global batch. So the sum of all replicas' gradients is the gradient of the
    mean over the global batch, even if shards differ in size. Regularization and other
    losses that layers add are already means over a batch; they are weighted by the
    shard's fraction of the examples.

    Attributes:
      objective: Minimized loss and reported metrics.
    """

    def __init__(
        self,
        model: keras.Model,
        objective: Objective,
        layer_state: LayerState,
        settings: StepSettings,
        *,
        gradient_scale: int,
        differentiate: bool,
        read: Read | None,
        sums_in_layers: bool,
    ):
        """Stores the parts of the step; traces nothing.

        Args:
          model: Model to train.
          objective: Minimized loss and reported metrics.
          layer_state: State of the model's layers.
          settings: Settings of the run; XLA compiles the step once for each number of
            rows.
          gradient_scale: Factor of the gradients over the gradient of the mean loss.
          differentiate: True if the outputs have gradients. Otherwise they have a loss
            that can be differentiated together with the losses of other replicas.
          read: Function that reads all weights before the model runs; None to let
            layers read.
          sums_in_layers: True if layers with `synchronized=True` sum over replicas.
        """
        self._model = model
        self.objective = objective
        self._layer_state = layer_state
        self._random_numbers = StepRandomNumbers(settings.seed, settings.random_numbers)
        self._sparse_gradients = settings.sparse_gradients
        self._gradient_scale = gradient_scale
        self._differentiate = differentiate
        self._read = read
        self._synchronized_rows = SynchronizedRows() if sums_in_layers else None
        self._loss_scale = settings.loss_scale
        self._seed_states = seed_states(model)
        self._compiled = None
        if settings.jit_compile:
            # XLA compiles only the computation of one replica; it cannot compile the
            # all-reduce.
            self._compiled = tf.function(
                self._compute, autograph=False, jit_compile=True
            )

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        if not self._differentiate:
            return self._undifferentiated(batch)
        if self._compiled is not None or self._read is not None:
            return self.with_current_weights()(batch)
        # Variables, not values: without `read` the layers read them during the forward
        # pass.
        weights = [v.value for v in self._model.trainable_variables]
        return self._outputs(batch, weights, self._layer_state.present())

    def with_current_weights(self) -> ReplicaFunction:
        """Returns a step bound to the current weights, for several micro-batches."""
        weights, state = self._present_values()
        return lambda batch: self._outputs(batch, weights, state)

    def _outputs(
        self, batch: Batch, weights: list[Any], state: list[tf.Tensor] | None
    ) -> ReplicaOutputs:
        compute = self._compiled or self._compute
        arguments = (batch, weights, state, self._scale())
        context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._synchronized_rows is not None:
            weight = self._weight_of_gradients(batch)
            context = self._synchronized_rows.of(batch, weight)
        with context:
            gradients, written, sums = compute(*arguments)
        variables = [v.value for v in self._model.trainable_variables]
        return ReplicaOutputs(
            gradients=with_known_shapes(gradients, variables),
            state=self._layer_state.weight_by_shard(written, batch),
            sums=sums,
        )

    def _weight_of_gradients(self, batch: Batch) -> tf.Tensor | None:
        """Returns the factor of gradients once they are taken; None for 1."""
        del batch
        return None

    def _scale(self) -> tf.Tensor | None:
        return None if self._loss_scale is None else self._loss_scale.read()

    def compile_for(self, batch: Batch) -> None:
        """Compiles the step with XLA, if it is to be compiled, without running it.

        Raises:
          ValueError: XLA cannot compile the step.
        """
        if self._compiled is not None:
            arguments = (batch, *self._present_values(), self._scale())
            self._compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")

    def _present_values(self) -> tuple[list[Any], list[tf.Tensor]]:
        """Reads the weights and the layer state once.

        Returns:
          Weights in the order of the trainable variables, and values of the layer
            state. Embedding shards stay variables.
        """
        # XLA cannot read a variable of another device, such as a parameter server's, so
        # all values are read here. Embeddings are read by row where they are used;
        # reading them here would transfer the whole table.
        by_row = {id(v) for x in embeddings_of(self._model) for v in x.shards}
        weights, state = self._model.trainable_variables, self._layer_state.variables
        whole = [v for v in weights if id(v) not in by_row]
        values = (self._read or _read_each)([v.value for v in (*whole, *state)])
        of_weights = dict(zip(map(id, whole), values, strict=False))
        return [of_weights.get(id(v), v.value) for v in weights], values[len(whole) :]

    def _compute(
        self,
        batch: Batch,
        weights: list[Any],
        state: list[tf.Tensor] | None,
        scale: tf.Tensor | None,
    ) -> tuple[list[Any], dict[str, Any], dict[str, tf.Tensor]]:
        """Computes the gradients, the values that layers wrote, and the sums.

        Args:
          batch: Rows of a replica.
          weights: Each trainable variable or its value.
          state: Values of the layers' state; None to read variables as usual.
          scale: Factor of the loss that is differentiated; None for one.
        """
        variables = [*self._model.trainable_variables, *self._layer_state.variables]
        values = [*weights, *(state or [v.value for v in self._layer_state.variables])]
        # Only values that were read in advance are mapped to their variables.
        mapped = [
            (variable, value)
            for variable, value in zip(variables, values, strict=True)
            if value is not variable.value
        ]
        with (
            self._layer_state.followed(mapped) as followed,
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            tape.watch(weights)
            share, written, sums = self._forward(batch, mapped)
            share, sums = scaled_loss(share, sums, scale, batch)
        rewritten = self._layer_state.rewritten(written)
        trained = self._model.trainable_variables
        gradients = tape.gradient(
            share,
            [rewritten.get(id(v), w) for v, w in zip(trained, weights, strict=True)],
        )
        gradients = unscaled(gradients, scale)
        written = self._layer_state.changes(written, mapped, followed)
        if not self._sparse_gradients:
            gradients = as_dense(gradients)
        return gradients, written, sums

    def _undifferentiated(self, batch: Batch) -> ReplicaOutputs:
        loss, written, sums = self._forward(batch, [])
        loss, sums = scaled_loss(loss, sums, self._scale(), batch)
        self._layer_state.check_keeps_weights(written, "--average=losses")
        state = self._layer_state.weight_by_shard(written, batch)
        return ReplicaOutputs(gradients=[], state=state, sums=sums, loss=loss)

    def _forward(
        self, batch: Batch, mapped: list[tuple[keras.Variable, tf.Tensor]]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the replica's part of the mean loss, new layer state, and sums."""
        keyed = self._random_numbers.keyed(self._seed_states, batch)
        with keras.StatelessScope([*keyed, *mapped], collect_losses=True) as scope:
            with self._random_numbers.drawn(batch):
                values = self.objective.values(self._model, batch, training=True)
            sums = weighted_sums(values, batch)
            sums["loss"] = with_layer_losses(
                sums["loss"], self._model.trainable_variables, scope, batch
            )
            dtype = sums["loss"].dtype
            # Divided by the global size, not by the shard's rows: the parts of all
            # replicas add up to the mean over the global batch.
            share = sums["loss"] / tf.cast(batch.global_size, dtype)
            share *= tf.cast(self._gradient_scale, dtype)
        written = self._layer_state.collect_updates(scope, mapped)
        return share, written, reported(sums, batch)


def with_totals(
    step: ReplicaFunction, model: Predict, objective: Objective
) -> ReplicaFunction:
    """Returns a step that gets the totals of the global batch if its loss needs any."""
    totals = objective.totals
    if totals is None:
        return step

    def count(batch: Batch) -> Mapping[str, tf.Tensor]:
        with keras.StatelessScope():
            return totals(model, batch)

    return WithTotals(step, count)


def _read_each(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(variable) for variable in variables]
