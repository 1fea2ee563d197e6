"""Errors of compressed gradients, in variables that a checkpoint keeps."""

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.gathering import gathered
from strategies.common.private_apis.collectives import local_replica
from strategies.common.types import Update


class ReplicaErrors:
    """Variables of each replica of several workers, and a copy of all on request.

    Each replica has an error and the method's state for each compressed gradient. They
    differ between processes, and a checkpoint is the chief's alone: before it,
    `gather` stores all replicas' variables in every process, in memory of the host.
    Unlike averaged copies of weights (`strategies.local_sgd.replica_variables`), no
    evaluation needs them.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rank: int,
        initial: Sequence[Sequence[tf.Tensor]],
        update: Update,
    ):
        """Makes the variables.

        Args:
          strategy: `MultiWorkerMirroredStrategy` with the replicas.
          rank: Rank of this process among the computing processes.
          initial: Initial values for each compressed gradient: the error, then the
            state of the method. They are the same on every replica.
          update: Update that counts the steps.
        """
        self._strategy = strategy
        self._update = update
        self._initial = initial
        devices = strategy.extended.worker_devices
        # The replicas of one process are neighbors in the order of all replicas.
        self._first = rank * len(devices)
        self._own = [self._variables_on(device) for device in devices]
        with tf.device("/device:CPU:0"):
            # Step of the replicas' variables, and that of the stored ones; -1 for none.
            self._own_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
            self._kept_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
            num_replicas = strategy.num_replicas_in_sync
            # Averaged weights of replicas have the same shapes, and another name.
            self._kept = [
                tf.Variable(
                    tf.zeros([num_replicas, *v.shape], v.dtype),
                    trainable=False,
                    name="error",
                )
                for values in initial
                for v in values
            ]
        self._gather = tf.function(self._store_all, autograph=False)
        self._restore = tf.function(self._assign_own, autograph=False)

    def _variables_on(self, device: str) -> list[list[tf.Variable]]:
        with tf.device(device):
            return [
                [tf.Variable(value, trainable=False) for value in values]
                for values in self._initial
            ]

    def saved(self) -> Sequence[tf.Variable]:
        """Returns the stored values of all replicas, for a checkpoint."""
        return [self._kept_at, *self._kept]

    def of(self, context: tf.distribute.ReplicaContext) -> list[list[tf.Variable]]:
        """Returns the calling replica's variables, for each compressed gradient."""
        return self._own[local_replica(context)]

    def mark_as_current(self) -> None:
        """Notes, in a step, that the variables belong to the step after it."""
        self._own_at.assign(self._update.applied_updates() + 1)

    def load(self) -> None:
        """Brings the replicas' variables to the step at which training continues.

        They are current unless a checkpoint was restored since. If no values were
        stored at its step, as by another strategy or another number of workers, all
        replicas start without an error.
        """
        step = int(self._update.applied_updates().numpy())
        # A rollback may have restored a step before that of the variables.
        if int(self._own_at.numpy()) == step:
            return
        if int(self._kept_at.numpy()) == step:
            self._restore()
        else:
            self._reset()
            # Rows of a training that was given up are not those of its steps.
            self._kept_at.assign(-1)
        self._own_at.assign(step)

    def gather(self) -> None:
        """Stores the values of all replicas in every process.

        All processes have to call this method at the same step, because it runs a
        collective.
        """
        step = int(self._update.applied_updates().numpy())
        # The same on every process: all have restored and trained the same steps.
        if int(self._own_at.numpy()) == step and int(self._kept_at.numpy()) != step:
            self._gather()

    def _store_all(self) -> None:
        rows = gathered(
            self._strategy, lambda context: [v for vs in self.of(context) for v in vs]
        )
        for kept, row in zip(self._kept, rows, strict=True):
            # All local replicas have gathered the same rows.
            kept.assign(self._strategy.experimental_local_results(row)[0])
        self._kept_at.assign(self._update.applied_updates())

    def _assign_own(self) -> None:
        for local, own in enumerate(self._own):
            variables = [v for vs in own for v in vs]
            for variable, kept in zip(variables, self._kept, strict=True):
                variable.assign(kept[self._first + local])

    def _reset(self) -> None:
        for own in self._own:
            for variables, values in zip(own, self._initial, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)
