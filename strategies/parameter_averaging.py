"""Replicas that train by themselves and average their weights now and then.

Each replica has a copy of the weights, of the layers' state and of the optimizer's.
In every step it takes its rows of the global batch and applies their gradient to its
own copy, without a word to the others. After every `sync_every_steps` steps the
weights and the layers' state become the mean over replicas; with
`average_optimizer_state` the optimizer's state, too.

Known as iterative parameter mixing (McDonald et al., Distributed Training Strategies
for the Structured Perceptron, 2010) and as local SGD (Stich, Local SGD Converges Fast
and Communicates Little, 2018). That momentum is averaged along is from Yu, Jin and
Yang, On the Linear Speedup Analysis of Communication Efficient Momentum SGD, 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import (
    Agreed,
    Batch,
    Communication,
    GlobalBatches,
    Observe,
    Pending,
    ReplicaStep,
    RunSteps,
    Shares,
    Strategy,
    Update,
)
from strategies.batch import take_share
from strategies.cluster import Cluster
from strategies.config import StrategyConfig
from strategies.copies import Copies
from strategies.devices import replica_devices
from strategies.inner_loop import InnerLoop
from strategies.replicated import compile_replicated, sum_one_by_one
from strategies.shares import scaled
from strategies.traits import Traits


class ParameterAveraging(Strategy):
    """Copies that drift apart for some steps, on the devices of one process.

    They are the components of `tf.distribute.MirroredStrategy`'s variables. What
    keeps those equal under `mirrored` is that every replica applies the same sum;
    here each applies its own gradient.
    """

    name = "parameter_averaging"
    traits = Traits(
        synchronous=True,
        multi_process=False,
        matches_one_device=False,
        averages=("parameters",),
        summary="A copy of the weights per device, trained alone, averaged at times.",
    )

    def __init__(self, devices: Sequence[str], config: StrategyConfig):
        self._devices = tuple(devices)
        self._config = config
        self._strategy = tf.distribute.MirroredStrategy(
            self._devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        self._copies: Copies | None = None
        self._averaged_bytes = 0

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> ParameterAveraging:
        del cluster
        return cls(replica_devices(config, replicas_without_gpu=2), config)

    @property
    def devices(self) -> Sequence[str]:
        return self._devices

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def distribute(self, batches: GlobalBatches) -> Any:
        return iter(batches.dataset(0, 1))

    def compile(self, replica_step: ReplicaStep, update: Update | None) -> RunSteps:
        if update is None:
            return compile_replicated(
                self._strategy, self._own_rows, sum_one_by_one, replica_step, None
            )
        self._copies = Copies(self._strategy, update)
        loop = compile_replicated(
            self._strategy,
            self._own_rows,
            _sum_what_is_reported,
            self._alone(replica_step),
            update,
            after_update=self._average_if_due(self._copies, update),
        )
        return _StepsOnCopies(loop, self._copies)

    def _average_if_due(
        self, copies: Copies, update: Update
    ) -> Callable[[Update], None]:
        averaged = [*update.weights()]
        if self._config.average_optimizer_state:
            averaged += update.optimizer_state()
        self._averaged_bytes = sum(
            v.dtype.size * v.shape.num_elements() for v in averaged
        )

        def average() -> tf.Tensor:
            copies.average(averaged)
            return tf.constant(0)

        def after_update(update: Update) -> None:
            since = update.applied_updates() % self._config.steps_between_averages
            tf.cond(tf.equal(since, 0), average, lambda: tf.constant(0))

        return after_update

    def communication(self, gradient_bytes: int) -> Communication | None:
        if self.num_replicas == 1:
            return None
        every = self._config.steps_between_averages
        return Communication(
            algorithm=f"weights to and from the first replica, every {every} step(s)",
            bytes_per_step_per_replica=round(2 * self._averaged_bytes / every),
        )

    def replica_state(self) -> Sequence[tf.Variable]:
        return [] if self._copies is None else self._copies.variables()

    def _own_rows(self, batch: Batch, context: tf.distribute.ReplicaContext) -> Batch:
        return take_share(batch, context.replica_id_in_sync_group, self.num_replicas)

    def _alone(self, replica_step: ReplicaStep) -> ReplicaStep:
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
                    scaled(gradient, self.num_replicas * part)
                    for gradient in shares.gradients
                ],
                state=shares.state,
                sums={name: counts * value for name, value in shares.sums.items()},
            )

        return step


class _StepsOnCopies:
    """Runs steps on copies, and leaves their mean behind. Satisfies `RunSteps`."""

    def __init__(self, loop: InnerLoop, copies: Copies):
        self._loop = loop
        self._copies = copies

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
        self._copies.take_up()
        pending = self._loop(batches, num_steps, observe, proposed)
        self._copies.put_aside()
        return pending


def _sum_what_is_reported(
    context: tf.distribute.ReplicaContext, shares: Shares
) -> Shares:
    """Adds up losses and metrics, and leaves a replica its own gradients and state.

    Whole numbers that layers keep cannot be averaged: as everywhere, all take the
    first replica's, and the others' shares of them are zero.
    """

    def add_up(value: tf.Tensor) -> tf.Tensor:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

    return shares._replace(
        state=tf.nest.map_structure(
            lambda value: value if value.dtype.is_floating else add_up(value),
            shares.state,
        ),
        sums={name: add_up(value) for name, value in sorted(shares.sums.items())},
    )
