"""Updates that a replica makes by itself, on a copy of the weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.types import (
    Agreed,
    Batch,
    Observe,
    Pending,
    ReplicaStep,
    Shares,
    Update,
)
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.reduction import scaled, totals
from strategies.inner_loop.results import OWN_TOTALS


def alone(replica_step: ReplicaStep, num_replicas: int) -> ReplicaStep:
    """A replica's step, as if its rows were the whole global batch.

    Gradients are means over these rows, weighted so that the mean over replicas
    is that over the global batch, where replicas have unequally many rows. One
    that has none computes on a row that is not its own, and takes a gradient of
    zero.
    """

    def step(batch: Batch) -> Shares:
        own = tf.maximum(batch.num_rows, 1)
        shares = replica_step(batch._replace(num_rows=own, global_size=own))
        part = batch.num_rows / batch.global_size
        counts = tf.cast(batch.num_rows > 0, tf.float64)
        return Shares(
            gradients=[
                scaled(gradient, num_replicas * part) for gradient in shares.gradients
            ],
            state=shares.state,
            sums={name: counts * value for name, value in shares.sums.items()},
        )

    return step


def sum_what_is_reported(
    shares: Shares, sum_shares: Callable[[Shares], Shares]
) -> Shares:
    """Adds up losses and metrics, and leaves a replica its own gradients and state.

    Whole numbers that layers keep cannot be averaged: as everywhere, all take the
    first replica's, and the others' shares of them are zero.

    Args:
      shares: of one replica.
      sum_shares: adds up the shares of all replicas; called on each.
    """
    own = tf.nest.flatten(shares.state)
    whole = [None if value.dtype.is_floating else value for value in own]
    # Zero, or not a number if one of them is not finite: all learn of it.
    sums = {**shares.sums, OWN_TOTALS: 0 * totals(shares)}
    summed = sum_shares(Shares(gradients=[], state=whole, sums=sums))
    state = [
        value if total is None else total
        for value, total in zip(own, summed.state, strict=True)
    ]
    return shares._replace(
        state=tf.nest.pack_sequence_as(shares.state, state), sums=summed.sums
    )


def averaged_variables(
    update: Update, average_optimizer_state: bool
) -> Sequence[tf.Variable]:
    """Returns the variables that are averaged over replicas at every synchronization.

    Args:
      update: The update that owns the variables.
      average_optimizer_state: The value of --average_optimizer_state.
    """
    if average_optimizer_state:
        return [*update.weights(), *update.optimizer_state()]
    return update.weights()


def average_if_due(
    average: Callable[[], None], steps_between_averages: int
) -> Callable[[Update], None]:
    """Returns a callback for the end of a step that averages when it is due.

    Args:
      average: Averages over replicas.
      steps_between_averages: Steps from one average to the next.
    """

    def due() -> tf.Tensor:
        average()
        return tf.constant(0)

    def after_update(update: Update) -> None:
        since = update.applied_updates() % steps_between_averages
        tf.cond(tf.equal(since, 0), due, lambda: tf.constant(0))

    return after_update


class StepsOnCopies:
    """Runs steps on copies of the weights. Satisfies `RunSteps`."""

    def __init__(
        self, loop: InnerLoop, take_up: Callable[[], None], leave: Callable[[], None]
    ):
        """Adds to a loop what stands before and after each call of it.

        Args:
          loop: whose steps change the replicas' own values.
          take_up: gives each replica its own values back, if they are kept aside.
          leave: called when the steps of a call have run.
        """
        self._loop = loop
        self._take_up = take_up
        self._leave = leave

    def trace(self, batches: Any) -> tf.Graph:
        return self._loop.trace(batches)

    def num_traces(self) -> int:
        return self._loop.num_traces()

    def __call__(
        self,
        batches: Any,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        self._take_up()
        pending = self._loop(batches, num_steps, observe, proposed)
        self._leave()
        return pending
