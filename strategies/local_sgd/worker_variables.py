"""Variables with copies that differ between the replicas of several processes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.gathering import gathered
from strategies.common.types import Update
from strategies.inner_loop.reduction import mean_of_copies
from strategies.inner_loop.replicated import sum_by_type
from strategies.local_sgd.replica_variables import selected


def _mean_of_rows(kept: tf.Variable) -> tf.Tensor:
    # Where the values are stored, so that the mean is the same when computed again.
    with tf.device(kept.device):
        return mean_of_copies(tf.unstack(kept))


class WorkerCopies:
    """Replica variables of several workers: local values, and their mean on request.

    The variables belong to `tf.distribute.MultiWorkerMirroredStrategy`: each process
    has its own. A mean over processes costs a collective, so that only
    `average_replica_variables` computes it, before evaluation or a checkpoint. It also
    gathers the local values of every replica in every process, where they are stored
    until steps run again. A checkpoint of the chief therefore needs no file of another
    machine, and evaluation does not change the training. A variable that is no longer
    the mean then has been assigned meanwhile, and all replicas take its value. Each
    process needs memory for the variables of all replicas.
    """

    def __init__(self, strategy: tf.distribute.Strategy, worker: int, update: Update):
        """Makes the variables that store the local values.

        Args:
          strategy: Strategy with the replicas.
          worker: Rank of this process among the computing processes.
          update: Update that changes the variables, all of them floating-point.
        """
        self._strategy = strategy
        self._worker = worker
        self._update = update
        self._variables = [*update.weights(), *update.optimizer_state()]
        # [replicas, ...] each; on the host, because every process has all replicas.
        with tf.device("/device:CPU:0"):
            self._kept = [
                tf.Variable(
                    tf.zeros([self._num_replicas, *variable.shape], variable.dtype),
                    trainable=False,
                )
                for variable in self._variables
            ]
            # Step at which the local values were stored; -1 for no step.
            self._kept_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._is_settled = True
        self._take_up = tf.function(self._assign_own, autograph=False)
        self._settle = tf.function(self._gather_and_average, autograph=False)

    @property
    def _num_replicas(self) -> int:
        return self._strategy.num_replicas_in_sync

    def variables(self) -> Sequence[tf.Variable]:
        """Returns the variables of the stored local values, in a fixed order.

        A checkpoint needs them in addition to the model.
        """
        return [self._kept_at, *self._kept]

    def load_local(self) -> list[tf.Variable]:
        """Restores the local values of each replica, if its variables have the mean.

        If no values were stored at this step, all replicas start with the values of the
        variables, as in a new run and in a run resumed from a checkpoint of another
        strategy.

        Returns:
          Variables without local values.
        """
        if not self._is_settled:
            return []
        self._is_settled = False
        at, now = self._kept_at.numpy(), self._update.applied_updates().numpy()
        if int(at) != int(now):
            return self._variables
        return selected(self._variables, self._take_up())

    def average_replica_variables(self) -> None:
        """Stores the local values of all replicas and assigns their mean.

        All processes have to call this method at the same step, because it runs a
        collective. A second call at the same step does nothing.
        """
        if not self._is_settled:
            self._settle()
            self._is_settled = True

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the mean of some variables to every replica, while steps run.

        With three replicas or more the mean of equal values may differ from these
        values in the last bit.
        """

        def on_each_replica() -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            # A collective can only sum, so that each replica divides its part.
            parts = [variable / self._num_replicas for variable in variables]
            return sum_by_type(context, parts)

        means = self._strategy.run(on_each_replica)
        for variable, mean in zip(variables, means, strict=True):
            self._assign(variable, self._strategy.experimental_local_results(mean))

    def _assign_own(self) -> tf.Tensor:
        """Returns whether each variable has been assigned, bool [variables]."""
        assigned = []
        for variable, kept in zip(self._variables, self._kept, strict=True):
            components = self._strategy.experimental_local_results(variable)
            is_assigned = tf.reduce_any(
                tf.not_equal(components[0], _mean_of_rows(kept))
            )
            # The replicas of one process are neighbors in the order of all replicas.
            first = self._worker * len(components)
            values = [
                tf.where(is_assigned, component, kept[first + index])
                for index, component in enumerate(components)
            ]
            self._assign(variable, values)
            assigned.append(is_assigned)
        return tf.stack(assigned)

    def _gather_and_average(self) -> None:
        values = gathered(self._strategy, lambda context: self._variables)
        for variable, kept, of_all in zip(
            self._variables, self._kept, values, strict=True
        ):
            rows = self._strategy.experimental_local_results(of_all)
            # All local replicas gathered the same rows; one copy is stored.
            kept.assign(rows[0])
            self._assign(variable, [_mean_of_rows(kept)] * len(rows))
        self._kept_at.assign(self._update.applied_updates())

    def _assign(self, variable: tf.Variable, values: Sequence[tf.Tensor]) -> None:
        """Assigns one value to each component on a device of this process."""
        components = self._strategy.experimental_local_results(variable)
        for component, value in zip(components, values, strict=True):
            with tf.device(component.device):
                component.assign(value)
