"""Variables with copies that differ between the replicas of one process."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.common.types import Update
from strategies.inner_loop.reduction import mean_of_copies


class Copies:
    """Replica variables of a mirrored strategy: local values in steps, means outside.

    The variables are mirrored, with a component on the device of each replica. While
    steps run, a component has the local value of its replica. Between calls of the
    inner loop all components have the mean, so that evaluation, checkpoints and
    histograms see one model. The local values are stored separately meanwhile, so that
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
        self._components = [
            strategy.experimental_local_results(variable)
            for variable in self._variables
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

    def load_local(self) -> list[tf.Variable]:
        """Restores the local values of each replica, if they were stored at this step.

        Otherwise all replicas start with the values of the variables, as in a new run
        and in a run resumed from a checkpoint of another strategy.

        Returns:
          Variables without local values.
        """
        at, now = self._aside_at.numpy(), self._update.applied_updates().numpy()
        if int(at) != int(now):
            return self._variables
        return selected(self._variables, self._take_up())

    def store_local(self) -> None:
        """Stores the local values of each replica, and assigns their mean."""
        self._put_aside()

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the mean of some variables to every replica, while steps run."""
        for variable in variables:
            components = self._strategy.experimental_local_results(variable)
            _assign(components, _mean(components))

    def _assign_own(self) -> tf.Tensor:
        """Returns whether each variable has been assigned, bool [variables]."""
        assigned = []
        for components, aside in zip(self._components, self._aside, strict=True):
            is_assigned = tf.reduce_any(tf.not_equal(components[0], _mean(aside)))
            for component, own in zip(components, aside, strict=True):
                with tf.device(component.device):
                    component.assign(tf.where(is_assigned, component, own))
            assigned.append(is_assigned)
        return tf.stack(assigned)

    def _keep_and_average(self) -> None:
        for components, aside in zip(self._components, self._aside, strict=True):
            for component, own in zip(components, aside, strict=True):
                with tf.device(component.device):
                    own.assign(component)
            # TensorFlow runs operations on variables in program order inside a
            # `tf.function`, so that the copies above have the local values.
            _assign(components, _mean(aside))
        self._aside_at.assign(self._update.applied_updates())


def _mean(components: Sequence[tf.Variable]) -> tf.Tensor:
    # One mean for all, computed on the first replica's device: equal to the last bit,
    # also when it is computed again.
    with tf.device(components[0].device):
        return mean_of_copies(components)


def _assign(components: Sequence[tf.Variable], value: tf.Tensor) -> None:
    for component in components:
        with tf.device(component.device):
            component.assign(value)


def selected(
    variables: Sequence[tf.Variable], is_selected: tf.Tensor
) -> list[tf.Variable]:
    """Returns the variables for which a flag is true, bool [variables]."""
    flags = is_selected.numpy()
    return [v for v, flag in zip(variables, flags, strict=True) if flag]


def _variable_like(variable: tf.Variable) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(variable, trainable=False)
