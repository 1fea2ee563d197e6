"""Variables with copies that differ between replicas or workers."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.gathering import gathered
from strategies.common.types import Update
from strategies.inner_loop.reduction import mean_of_copies
from strategies.inner_loop.replicated import sum_by_type


class Copies:
    """Replica variables of a mirrored strategy: local values in steps, means outside.

    The variables are mirrored, with a component on the device of each replica. While
    steps run, a component has the local value of its replica. Between calls of the
    inner loop all components have the mean, so that evaluation, checkpoints and
    histograms see one model. The local values are stored separately meanwhile, so that
    these readers do not change the training.
    """

    def __init__(self, strategy: tf.distribute.Strategy, update: Update):
        """Makes the variables that store the local values.

        Args:
          strategy: Strategy with the replicas.
          update: Update that changes the variables, all of them floating-point.
        """
        self._strategy = strategy
        self._update = update
        self._components = [
            strategy.experimental_local_results(variable)
            for variable in (*update.weights(), *update.optimizer_state())
        ]
        self._aside = [
            [_variable_like(copy) for copy in copies] for copies in self._components
        ]
        # Step at which the local values were stored; -1 for no step.
        self._aside_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._take_up = tf.function(self._assign_own, autograph=False)
        self._put_aside = tf.function(self._keep_and_average, autograph=False)

    def variables(self) -> Sequence[tf.Variable]:
        """Returns the variables of the stored local values, in a fixed order.

        A checkpoint needs them in addition to the model.
        """
        return [self._aside_at, *(copy for copies in self._aside for copy in copies)]

    def load_local(self) -> bool:
        """Restores the local values of each replica, if they were stored at this step.

        Otherwise all replicas start with the values of the variables, as in a new run
        and in a run resumed from a checkpoint of another strategy.

        Returns:
          Whether there were local values.
        """
        at, now = self._aside_at.numpy(), self._update.applied_updates().numpy()
        if int(at) != int(now):
            return False
        self._take_up()
        return True

    def store_local(self) -> None:
        """Stores the local values of each replica, and assigns their mean."""
        self._put_aside()

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the mean of some variables to every replica, while steps run."""
        for variable in variables:
            _average(self._strategy.experimental_local_results(variable))

    def _assign_own(self) -> None:
        for components, aside in zip(self._components, self._aside, strict=True):
            for component, own in zip(components, aside, strict=True):
                with tf.device(component.device):
                    component.assign(own)

    def _keep_and_average(self) -> None:
        for components, aside in zip(self._components, self._aside, strict=True):
            for component, own in zip(components, aside, strict=True):
                with tf.device(component.device):
                    own.assign(component)
            # TensorFlow runs operations on variables in program order inside a
            # `tf.function`, so that the copies above have the local values.
            _average(components)
        self._aside_at.assign(self._update.applied_updates())


def _average(components: Sequence[tf.Variable]) -> None:
    # One mean for all, computed on the first replica's device: equal to the last bit.
    with tf.device(components[0].device):
        mean = mean_of_copies(components)
    for component in components:
        with tf.device(component.device):
            component.assign(mean)


def _variable_like(variable: tf.Variable) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(variable, trainable=False)


class WorkerCopies:
    """Replica variables of several workers: local values, and their mean on request.

    The variables belong to `tf.distribute.MultiWorkerMirroredStrategy`: each process
    has its own. A mean over processes costs a collective, so that only
    `average_replica_variables` computes it, before evaluation or a checkpoint. It also
    gathers the local values of every replica in every process, where they are stored
    until steps run again. A checkpoint of the chief therefore needs no file of another
    machine, and evaluation does not change the training. Each process needs memory for
    the variables of all replicas.
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

    def load_local(self) -> bool:
        """Restores the local values of each replica, if its variables have the mean.

        If no values were stored at this step, all replicas start with the values of the
        variables, as in a new run and in a run resumed from a checkpoint of another
        strategy.

        Returns:
          Whether there are local values.
        """
        if not self._is_settled:
            return True
        self._is_settled = False
        at, now = self._kept_at.numpy(), self._update.applied_updates().numpy()
        if int(at) != int(now):
            return False
        self._take_up()
        return True

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

    def _assign_own(self) -> None:
        for variable, kept in zip(self._variables, self._kept, strict=True):
            # The replicas of one process are neighbors in the order of all replicas.
            num_local = len(self._strategy.experimental_local_results(variable))
            first = self._worker * num_local
            self._assign(variable, [kept[first + i] for i in range(num_local)])

    def _gather_and_average(self) -> None:
        values = gathered(self._strategy, lambda context: self._variables)
        for variable, kept, of_all in zip(
            self._variables, self._kept, values, strict=True
        ):
            rows = self._strategy.experimental_local_results(of_all)
            # All local replicas gathered the same rows; one copy is stored.
            kept.assign(rows[0])
            means = [mean_of_copies(tf.unstack(copies)) for copies in rows]
            self._assign(variable, means)
        self._kept_at.assign(self._update.applied_updates())

    def _assign(self, variable: tf.Variable, values: Sequence[tf.Tensor]) -> None:
        """Assigns one value to each component on a device of this process."""
        components = self._strategy.experimental_local_results(variable)
        for component, value in zip(components, values, strict=True):
            with tf.device(component.device):
                component.assign(value)
