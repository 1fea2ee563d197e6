"""Variables of which every replica has a copy that may differ from the others'."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.base import Update
from strategies.shares import mean_of_copies


class Copies:
    """What replicas hold while they train, and its mean while they do not.

    The variables are mirrored ones, with a component on the device of each replica.
    While steps run, a component is what its replica has come to by itself. Between
    calls of the inner loop all components are the mean, so that evaluation,
    checkpoints and histograms see one model, and the replicas' own values are kept
    aside. So to look at the model does not change the training.
    """

    def __init__(self, strategy: tf.distribute.Strategy, update: Update):
        """Makes the variables for what is kept aside.

        Args:
          strategy: has the replicas.
          update: tells which variables it changes, all of them floating.
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
        # At which step they were put there: none yet.
        self._aside_at = tf.Variable(-1, trainable=False, dtype=tf.int64)
        self._take_up = tf.function(self._assign_own, autograph=False)
        self._put_aside = tf.function(self._keep_and_average, autograph=False)

    def variables(self) -> Sequence[tf.Variable]:
        """What is kept aside, in a fixed order: all that resuming needs besides."""
        return [self._aside_at, *(copy for copies in self._aside for copy in copies)]

    def take_up(self) -> None:
        """Gives each replica its own values back.

        If none were kept at this step, as in a new run or one resumed from a
        checkpoint of another strategy, all begin with what the variables are.
        """
        if int(self._aside_at.numpy()) == int(self._update.applied_updates().numpy()):
            self._take_up()

    def put_aside(self) -> None:
        """Keeps what each replica has, and leaves the mean in the variables."""
        self._put_aside()

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every replica the mean of some of the variables, while steps run."""
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
            _average(components)
        self._aside_at.assign(self._update.applied_updates())


def _average(components: Sequence[tf.Variable]) -> None:
    with tf.device(components[0].device):
        mean = mean_of_copies(components)
    for component in components:
        with tf.device(component.device):
            component.assign(mean)


def _variable_like(variable: tf.Variable) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(variable, trainable=False)
