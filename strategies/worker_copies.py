"""Variables of which every worker has a copy that may differ from the others'."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.base import Update
from strategies.replicated import sum_by_type
from strategies.shares import mean_of_copies


class WorkerCopies:
    """What workers hold while they train, and its mean when it is looked at.

    The variables are those of `tf.distribute.MultiWorkerMirroredStrategy`, of which
    each process has its own. To make them the mean costs a collective, and so is done
    only when something is about to look: `settle`. It brings what every replica has to
    every process, where it is kept until steps run again. So a checkpoint of the
    chief's has all of it and needs no file of another machine's, and so to look at the
    model does not change the training. It takes memory for the variables of all
    replicas in each process.
    """

    def __init__(self, strategy: tf.distribute.Strategy, worker: int, update: Update):
        """Makes the variables for what is kept.

        Args:
          strategy: has the replicas.
          worker: this process's rank among those that compute.
          update: tells which variables it changes, all of them floating.
        """
        self._strategy = strategy
        self._worker = worker
        self._update = update
        self._variables = [*update.weights(), *update.optimizer_state()]
        with tf.device("/device:CPU:0"):
            self._kept = [
                tf.Variable(
                    tf.zeros([self._num_replicas, *variable.shape], variable.dtype),
                    trainable=False,
                )
                for variable in self._variables
            ]
            # At which step it was put there: none yet.
            self._kept_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._is_settled = True
        self._take_up = tf.function(self._assign_own, autograph=False)
        self._settle = tf.function(self._gather_and_average, autograph=False)

    @property
    def _num_replicas(self) -> int:
        return self._strategy.num_replicas_in_sync

    def variables(self) -> Sequence[tf.Variable]:
        """What is kept, in a fixed order: all that resuming needs besides."""
        return [self._kept_at, *self._kept]

    def take_up(self) -> None:
        """Gives each replica its own values back, if its variables are the mean.

        If none were kept at this step, as in a new run or one resumed from a
        checkpoint of another strategy, all begin with what the variables are.
        """
        if not self._is_settled:
            return
        if int(self._kept_at.numpy()) == int(self._update.applied_updates().numpy()):
            self._take_up()
        self._is_settled = False

    def settle(self) -> None:
        """Keeps what each replica has, and leaves the mean in the variables.

        All processes have to call it at the same step. Again at that step it does
        nothing.
        """
        if not self._is_settled:
            self._settle()
            self._is_settled = True

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every replica the mean of some of the variables, while steps run.

        With three replicas or more the mean of equal values may differ from them in
        the last bit.
        """

        def on_each_replica() -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            parts = [variable / self._num_replicas for variable in variables]
            return sum_by_type(context, parts)

        means = self._strategy.run(on_each_replica)
        for variable, mean in zip(variables, means, strict=True):
            self._assign(variable, self._strategy.experimental_local_results(mean))

    def _assign_own(self) -> None:
        for variable, kept in zip(self._variables, self._kept, strict=True):
            num_local = len(self._strategy.experimental_local_results(variable))
            first = self._worker * num_local
            self._assign(variable, [kept[first + i] for i in range(num_local)])

    def _gather_and_average(self) -> None:
        for variable, kept, gathered in zip(
            self._variables, self._kept, self._gathered(), strict=True
        ):
            rows = self._strategy.experimental_local_results(gathered)
            kept.assign(rows[0])
            means = [mean_of_copies(tf.unstack(copies)) for copies in rows]
            self._assign(variable, means)
        self._kept_at.assign(self._update.applied_updates())

    def _gathered(self) -> Sequence[tf.Tensor]:
        """Of each variable what all replicas have, [replicas, ...], on each of them.

        A replica adds its values in their place and zeros elsewhere.
        """

        def on_each_replica() -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            is_own = tf.equal(
                tf.range(self._num_replicas), context.replica_id_in_sync_group
            )
            rows = [
                tf.where(
                    tf.reshape(is_own, [-1, *(1 for _ in variable.shape)]),
                    tf.convert_to_tensor(variable)[tf.newaxis],
                    tf.zeros([], variable.dtype),
                )
                for variable in self._variables
            ]
            return sum_by_type(context, rows)

        return self._strategy.run(on_each_replica)

    def _assign(self, variable: tf.Variable, values: Sequence[tf.Tensor]) -> None:
        """Each component on a device of this process gets a value of its own."""
        components = self._strategy.experimental_local_results(variable)
        for component, value in zip(components, values, strict=True):
            with tf.device(component.device):
                component.assign(value)
