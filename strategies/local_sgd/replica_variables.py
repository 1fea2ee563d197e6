"""Variables with copies that differ between replicas."""

import abc
from collections.abc import Sequence

import tensorflow as tf

from strategies.common.types import Update


class ReplicaVariables(abc.ABC):
    """Copies of variables: local values of replicas in steps, means outside.

    The variables belong to a strategy of tf.distribute, with a component on the device
    of each replica. While steps run, a component has the local value of its
    replica. For evaluation, checkpoints and histograms, which see one model, all
    components have the mean. The local values are stored separately meanwhile, so that
    these readers do not change the training. A variable that is no longer the mean has
    been assigned meanwhile, as by a callback; all replicas take its value.
    """

    def __init__(self, strategy: tf.distribute.Strategy, update: Update):
        """Makes the variables that store the local values.

        Args:
          strategy: Strategy with the replicas.
          update: Update that changes the variables, all of them floating-point.
        """
        self._strategy = strategy
        self._update = update
        self._variables = [*update.weights(), *update.optimizer_state()]
        self._stored = list(map(self._store_of, self._variables))
        with tf.device("/device:CPU:0"):
            # Step at which the local values were stored; -1 for no step.
            self._stored_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._load = tf.function(self._assign_local, autograph=False)
        self._store = tf.function(self._store_and_average, autograph=False)

    def variables(self) -> Sequence[tf.Variable]:
        """Returns the variables of the stored local values, in a fixed order.

        A checkpoint needs them in addition to the model.
        """
        return [self._stored_at, *(one for stored in self._stored for one in stored)]

    def load_local(self) -> list[tf.Variable]:
        """Restores the local values of each replica, if they were stored at this step.

        Otherwise all replicas start with the values of the variables, as in a new run
        and in a run resumed from a checkpoint of another strategy.

        Returns:
          Variables without local values.
        """
        at, now = self._stored_at.numpy(), self._update.applied_updates().numpy()
        if int(at) != int(now):
            return self._variables
        flags = zip(self._variables, self._load().numpy(), strict=True)
        return [variable for variable, is_assigned in flags if is_assigned]

    @abc.abstractmethod
    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the mean of some variables to every replica, while steps run."""

    @abc.abstractmethod
    def _store_of(self, variable: tf.Variable) -> list[tf.Variable]:
        """Makes the variables that store the local values of a variable."""

    @abc.abstractmethod
    def _store_local(self) -> None:
        """Stores the local values of all variables, in a graph."""

    @abc.abstractmethod
    def _local_values(self, stored: Sequence[tf.Variable]) -> Sequence[tf.Tensor]:
        """Returns the stored values of a variable, for each replica of this process."""

    @abc.abstractmethod
    def _mean(self, stored: Sequence[tf.Variable]) -> tf.Tensor:
        """Returns the mean of the stored values, the same when computed again."""

    def _assign_local(self) -> tf.Tensor:
        """Returns whether each variable has been assigned, bool [variables]."""
        assigned = []
        for variable, stored in zip(self._variables, self._stored, strict=True):
            components = self._components(variable)
            is_assigned = tf.reduce_any(tf.not_equal(components[0], self._mean(stored)))
            local = self._local_values(stored)
            for component, own in zip(components, local, strict=True):
                with tf.device(component.device):
                    component.assign(tf.where(is_assigned, component, own))
            assigned.append(is_assigned)
        return tf.stack(assigned)

    def _store_and_average(self) -> None:
        # Inside a `tf.function` TensorFlow runs operations on variables in the order of
        # the program: the local values are stored before the mean is assigned.
        self._store_local()
        for variable, stored in zip(self._variables, self._stored, strict=True):
            assign(self._components(variable), self._mean(stored))
        self._stored_at.assign(self._update.applied_updates())

    def _components(self, variable: tf.Variable) -> Sequence[tf.Variable]:
        """Returns the component on each device of this process."""
        return self._strategy.experimental_local_results(variable)


class DeviceCopies(ReplicaVariables):
    """Replica variables of one process, which have the mean between two calls."""

    def store_local(self) -> None:
        """Stores the local values of each replica, and assigns their mean."""
        self._store()

    def average(self, variables: Sequence[tf.Variable]) -> None:
        for variable in variables:
            components = self._components(variable)
            assign(components, self._mean(components))

    def _store_of(self, variable: tf.Variable) -> list[tf.Variable]:
        stored = []
        for component in self._components(variable):
            with tf.device(component.device):
                stored.append(tf.Variable(component, trainable=False))
        return stored

    def _store_local(self) -> None:
        for variable, stored in zip(self._variables, self._stored, strict=True):
            for component, own in zip(self._components(variable), stored, strict=True):
                with tf.device(component.device):
                    own.assign(component)

    def _local_values(self, stored: Sequence[tf.Variable]) -> Sequence[tf.Tensor]:
        return stored

    def _mean(self, stored: Sequence[tf.Variable]) -> tf.Tensor:
        # One mean for all, computed on the first replica's device: equal to the last
        # bit.
        with tf.device(stored[0].device):
            return mean_of_copies(stored)


def assign(components: Sequence[tf.Variable], value: tf.Tensor) -> None:
    """Assigns a value to each component, on its device."""
    for component in components:
        with tf.device(component.device):
            component.assign(value)


def mean_of_copies(copies: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the mean of tensors; the mean of equal tensors is exactly their value."""
    # The sum of three equal numbers may lose the last bit, so that only differences
    # from the first tensor are summed. The difference of equal infinities is nan.
    first, *others = (tf.convert_to_tensor(copy) for copy in copies)
    if not others:
        return first
    zeros = tf.zeros_like(first)
    differences = [tf.where(tf.equal(o, first), zeros, o - first) for o in others]
    return first + tf.add_n(differences) / len(copies)
