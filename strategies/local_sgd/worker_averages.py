"""Workers that train copies of the weights alone, and average them at times."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies.collectives.update_exchange import (
    WIRE_TYPES,
    UpdateExchange,
    ring_factor,
)
from strategies.common.types import (
    Communication,
    LoopFunction,
    ReplicaFunction,
    ReplicaOutputs,
    Update,
)
from strategies.inner_loop.replicated import (
    OwnShard,
    all_reduce_packed,
    compile_replicated,
)
from strategies.inner_loop.steps_on_copies import StepsOnCopies
from strategies.local_sgd.averages import Averages
from strategies.local_sgd.local_steps import local_step, sum_what_is_reported
from strategies.local_sgd.worker_variables import WorkerCopies

if TYPE_CHECKING:
    from strategies.config import StrategyConfig


class WorkerAverages(UpdateExchange):
    """Steps in which every replica applies its own gradient, and averages of them."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        worker: int,
        update: Update,
        config: StrategyConfig,
    ):
        """Makes the variables that store the replicas' own values.

        Args:
          strategy: `MultiWorkerMirroredStrategy` with the replicas.
          worker: Rank of this process among the computing processes.
          update: Update of the model.
          config: Settings of averages.
        """
        self._strategy = strategy
        self._update = update
        self._wire_type = WIRE_TYPES[config.all_reduce_dtype]
        self._copies = WorkerCopies(strategy, worker, update)
        self._averages = Averages(strategy, self._copies, update, config)

    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        loop = compile_replicated(
            self._strategy,
            own_shard,
            self._sum_reported,
            local_step(replica_step, self._strategy.num_replicas_in_sync),
            self._update,
            after_update=self._averages.after_update,
        )
        # Values stay in the variables until `average`: `leave` does nothing.
        return StepsOnCopies(loop, self._averages.load_local, leave=lambda: None)

    def communication(self, gradient_bytes: int) -> Communication:
        del gradient_bytes
        # Only averages count: losses and metrics of a step are a few numbers.
        averages = self._averages
        factor = ring_factor(self._strategy.num_replicas_in_sync)
        return Communication(
            algorithm=f"ring all-reduce of {averages.quantity}, {averages.schedule}",
            bytes_per_step_per_replica=round(factor * averages.bytes_per_step),
        )

    def variables(self) -> Sequence[tf.Variable]:
        return self._averages.variables()

    def average(self) -> None:
        self._copies.average_replica_variables()

    def _sum_reported(
        self, context: tf.distribute.ReplicaContext, outputs: ReplicaOutputs
    ) -> ReplicaOutputs:
        return sum_what_is_reported(
            outputs,
            functools.partial(all_reduce_packed, context, send_as=self._wire_type),
        )
