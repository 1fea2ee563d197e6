"""Variables with copies that differ between the replicas of several processes."""

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.gathering import gathered
from strategies.common.types import Update
from strategies.inner_loop.all_reduce import sum_by_type
from strategies.local_sgd.replica_variables import ReplicaVariables, mean_of_copies


class WorkerCopies(ReplicaVariables):
    """Replica variables of several workers, which have the mean on request.

    The variables belong to `tf.distribute.MultiWorkerMirroredStrategy`: each process
    has its own. A mean over processes costs a collective, so that only
    `average_replica_variables` computes it, before evaluation or a checkpoint. It also
    gathers the local values of every replica in every process, where they are stored
    until steps run again. A checkpoint of the chief therefore needs no file of another
    machine. Each process needs memory for the variables of all replicas.
    """

    def __init__(self, strategy: tf.distribute.Strategy, rank: int, update: Update):
        """Makes the variables that store the local values."""
        self._num_replicas = strategy.num_replicas_in_sync
        super().__init__(strategy, update)
        num_local = len(strategy.extended.worker_devices)
        # The replicas of one process are neighbors in the order of all replicas.
        self._local = range(rank * num_local, (rank + 1) * num_local)
        self._has_mean = True

    def load_local(self) -> list[tf.Variable]:
        if not self._has_mean:
            return []
        self._has_mean = False
        return super().load_local()

    def average_replica_variables(self) -> None:
        """Stores the local values of all replicas and assigns their mean.

        All processes have to call this method at the same step, because it runs a
        collective. A second call at the same step does nothing.
        """
        if not self._has_mean:
            self._store()
            self._has_mean = True

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
            values = self._strategy.experimental_local_results(mean)
            for component, value in zip(
                self._components(variable), values, strict=True
            ):
                with tf.device(component.device):
                    component.assign(value)

    def _store_of(self, variable: tf.Variable) -> list[tf.Variable]:
        # On the host, because every process has all replicas.
        with tf.device("/device:CPU:0"):
            rows = tf.zeros([self._num_replicas, *variable.shape], variable.dtype)
            return [tf.Variable(rows, trainable=False)]

    def _store_local(self) -> None:
        gathered_rows = gathered(self._strategy, lambda context: self._variables)
        for (stored,), rows in zip(self._stored, gathered_rows, strict=True):
            # All local replicas gathered the same rows; one copy is stored.
            stored.assign(self._strategy.experimental_local_results(rows)[0])

    def _local_values(self, stored: Sequence[tf.Variable]) -> Sequence[tf.Tensor]:
        return [stored[0][replica] for replica in self._local]

    def _mean(self, stored: Sequence[tf.Variable]) -> tf.Tensor:
        with tf.device(stored[0].device):
            return mean_of_copies(tf.unstack(stored[0]))
