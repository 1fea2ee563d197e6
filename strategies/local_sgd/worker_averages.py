"""Workers that train copies of the weights alone, and average them at times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies.collectives.update_exchange import UpdateExchange, ring_factor
from strategies.common.types import (
    Communication,
    LoopFunction,
    ReplicaFunction,
    Update,
)
from strategies.inner_loop.all_reduce import all_reduce_packed
from strategies.inner_loop.replicated import OwnShard
from strategies.local_sgd.averages import Averages
from strategies.local_sgd.worker_variables import WorkerCopies

if TYPE_CHECKING:
    from strategies.config import StrategyConfig


class WorkerAverages(UpdateExchange):
    """Local steps of every replica, and averages of their weights every few steps."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rank: int,
        update: Update,
        config: StrategyConfig,
    ):
        """Makes the variables that store the replicas' own values."""
        self._num_replicas = strategy.num_replicas_in_sync
        self._copies = WorkerCopies(strategy, rank, update)
        self._averages = Averages(strategy, self._copies, update, config)

    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        # Values stay in the variables until `average`.
        return self._averages.compile(own_shard, all_reduce_packed, replica_step)

    def communication(self, gradient_bytes: int) -> Communication:
        del gradient_bytes
        # Only averages count: losses and metrics of a step are a few numbers.
        averages = self._averages
        factor = ring_factor(self._num_replicas)
        return Communication(
            algorithm=f"ring all-reduce of {averages.quantity}, {averages.schedule}",
            bytes_per_step_per_replica=round(factor * averages.bytes_per_step),
        )

    def variables(self) -> Sequence[tf.Variable]:
        return self._averages.variables()

    def average(self) -> None:
        self._copies.average_replica_variables()
