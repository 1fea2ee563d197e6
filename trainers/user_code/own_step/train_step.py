"""Replica step of a model whose class overrides `train_step`."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.optimizers import counter_of
from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs
from strategies.inner_loop.reduction import scaled
from strategies.inner_loop.updates_in_turn import Former, UpdatesInTurn
from trainers.model.ballast import gradients_of_ballast
from trainers.model.loss_sums import reported, weighted_sums
from trainers.model.optimizers.loss_scale import scaled_loss, unscaled
from trainers.model.sparse_gradients import as_dense
from trainers.model.train_step import TrainStep
from trainers.user_code.own_step.model_step import regularized_weights
from trainers.user_code.own_step.objective import OwnStep
from trainers.user_code.own_step.update_catcher import CaughtUpdate


class OwnTrainStep(TrainStep):
    """Replica outputs of a model's `train_step`. Satisfies `ReplicaFunction`.

    The step takes the mean of its loss over a shard, so that its gradients count by the
    shard's fraction of the global batch.
    """

    objective: OwnStep
    # Index of the pass to compute, and values before the updates of earlier passes.
    _pass = 0
    _former: Former = ()

    def in_turn(self) -> ReplicaFunction:
        """Returns a step that the inner loop computes once for each of its passes."""
        if self.objective.num_passes == 1:
            return self

        def compute(index: int, former: Former) -> ReplicaFunction:
            step = copy.copy(self)
            step._pass, step._former = index, former
            return step

        def changed(index: int) -> list[tf.Variable]:
            return [v.value for v in self._variables_of(index)]

        return UpdatesInTurn(self.objective.num_passes, compute, changed)

    @property
    def _is_last_pass(self) -> bool:
        return self._pass + 1 == self.objective.num_passes

    def _variables_of(self, index: int) -> list[keras.Variable]:
        """Returns the variables that a pass changes, and counters of its optimizers."""
        updates = self.objective.updates[self.objective.passes[index]]
        counters = [counter_of(update.optimizer) for update in updates]
        return [*(v for update in updates for v in update.variables), *counters]

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        # The step asks a tape for gradients of variables: it has to read them itself.
        return self._outputs(batch, [], self._layer_state.present())

    def with_current_weights(self) -> ReplicaFunction:
        """See `Accumulable`; no update can come between two micro-batches."""
        return self

    def _compute(
        self,
        batch: Batch,
        weights: list[Any],
        state: list[tf.Tensor] | None,
        scale: tf.Tensor | None,
    ) -> tuple[list[Any], dict[str, Any], dict[str, tf.Tensor]]:
        """See `TrainStep`; weights are not used."""
        del weights
        step = self.objective.train
        of_pass = self.objective.passes[self._pass]
        values = zip(self._layer_state.variables, state or [], strict=bool(state))
        mapped = [*regularized_weights(self._model), *values]
        keyed = self._random_numbers.keyed(self._seed_states, batch)
        with (
            self._layer_state.followed(mapped) as followed,
            self._random_numbers.drawn(batch),
        ):
            scope, logs = step.run(
                batch,
                [*keyed, *mapped],
                scale,
                self._before(),
                # To trace the rest of a step takes as long as its first updates.
                num_updates=None if self._is_last_pass else of_pass.stop,
            )
        # The last pass may have no update, and only read.
        updates = scope.updates[of_pass]
        self._check_variables(updates)
        gradients = self._parts_of(_joined(u.gradients for u in updates), batch)
        gradients = unscaled(gradients, scale if scope.is_scaled else None)
        if not self._sparse_gradients:
            gradients = as_dense(gradients)
        assigned = _joined(update.assigned for update in updates)
        written = self._layer_state.by_position(assigned)
        if not self._is_last_pass:
            # Other variables and reported values are taken from the last pass.
            return gradients, written, reported({}, batch)
        written |= self._layer_state.collect_updates(scope, mapped)
        written = self._layer_state.changes(written, mapped, followed)
        sums = reported(weighted_sums(step.values(batch, scope, logs), batch), batch)
        _, sums = scaled_loss(tf.zeros([]), sums, scale, batch)
        return gradients, written, sums

    def _check_variables(self, updates: Sequence[CaughtUpdate]) -> None:
        """Refuses updates of other variables than the step has been observed with."""
        expected = self.objective.updates[self.objective.passes[self._pass]]
        known = [{id(variable) for variable in one.variables} for one in expected]
        if known != [set(update.gradients) for update in updates]:
            raise UsageError(
                f"{self.objective.title} updates other weights than in its first call. "
                "If it sets trainable of a part, replicas change that for each other "
                "where layers with synchronized=True sum over them: leave that out, or "
                "choose --strategy=multi_worker_mirrored."
            )

    def _before(self) -> list[dict[int, tf.Tensor]]:
        """Returns values before each update of the earlier passes, by variable's id."""
        before = []
        for index, values in enumerate(self._former):
            changed = map(id, self._variables_of(index))
            by_variable = dict(zip(changed, values, strict=True))
            count = len(self.objective.updates[self.objective.passes[index]])
            before += [by_variable] * count
        return before

    def _weight_of_gradients(self, batch: Batch) -> tf.Tensor:
        """See `TrainStep`: the shard's fraction of the global batch."""
        if self.objective.is_sum:
            # Only the row of an empty shard does not count.
            return tf.cast(batch.num_rows > 0, tf.float64)
        return batch.num_rows / batch.global_size

    def _parts_of(self, gradients: Mapping[int, Any], batch: Batch) -> list[Any]:
        """Returns the shard's parts of the gradients of the global batch."""
        share = self._weight_of_gradients(batch) * self._gradient_scale
        shares = {
            key: scaled(gradient, share)
            for key, gradient in gradients.items()
            if gradient is not None
        }
        if self._is_last_pass:
            # A step that adds no penalties has no gradient of ballast.
            shares = {**gradients_of_ballast(self._model, share), **shares}
        return [shares.get(id(v)) for v in self._model.trainable_variables]


def _joined(parts: Iterable[Mapping[int, Any]]) -> dict[int, Any]:
    return {key: value for part in parts for key, value in part.items()}
