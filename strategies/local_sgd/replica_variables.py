"""Variables whose copies may differ between replicas or workers."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.common.types import Update
from strategies.inner_loop.reduction import mean_of_copies
from strategies.inner_loop.replicated import sum_by_type


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
