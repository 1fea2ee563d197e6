"""Ways in which workers exchange what an update needs."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies.common.types import (
    Communication,
    LoopFunction,
    ReplicaFunction,
    Update,
)
from strategies.inner_loop.all_reduce import all_reduce_packed
from strategies.inner_loop.reduction import bytes_of
from strategies.inner_loop.replicated import OwnShard, compile_replicated

if TYPE_CHECKING:
    from strategies.collectives.optimizer_shard import OptimizerShard

WIRE_TYPES = {"as_is": None, "bfloat16": tf.bfloat16, "float16": tf.float16}


class UpdateExchange(abc.ABC):
    """One way for workers to exchange what an update needs.

    By default workers have no state that differs between them.
    """

    @abc.abstractmethod
    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        """Builds the loop function."""

    @abc.abstractmethod
    def communication(self, gradient_bytes: int) -> Communication:
        """Returns the bytes that a replica sends for one update."""

    def variables(self) -> Sequence[tf.Variable]:
        """Returns the variables that a checkpoint needs in addition to the model."""
        return ()

    def gather(self) -> None:
        """Brings `variables` up to date in every process, before a checkpoint."""

    def average(self) -> None:
        """Makes the model's and the optimizer's variables equal on all workers."""

    def optimizer_shard(self) -> OptimizerShard | None:
        """Returns this worker's part of the optimizer; None if it has the whole."""
        return None


class SummedGradients(UpdateExchange):
    """Sum of all replicas' gradients, which every replica applies."""

    def __init__(
        self, strategy: tf.distribute.Strategy, update: Update, all_reduce_dtype: str
    ):
        self._strategy = strategy
        self._update = update
        self._all_reduce_dtype = all_reduce_dtype

    def compile(
        self, own_shard: OwnShard, replica_step: ReplicaFunction
    ) -> LoopFunction:
        wire_type = WIRE_TYPES[self._all_reduce_dtype]
        all_reduce = functools.partial(all_reduce_packed, send_as=wire_type)
        return compile_replicated(
            self._strategy, own_shard, all_reduce, replica_step, self._update
        )

    def communication(self, gradient_bytes: int) -> Communication:
        dense = [spec for spec in self._update.dense_gradients() if spec is not None]
        # Rows of sparse gradients keep their type.
        size = gradient_bytes - bytes_of(dense)
        size += bytes_of(dense, WIRE_TYPES[self._all_reduce_dtype])
        factor = ring_factor(self._strategy.num_replicas_in_sync)
        return Communication(
            algorithm=f"ring all-reduce, {self._all_reduce_dtype}",
            bytes_per_step_per_replica=round(factor * size),
        )


def ring_factor(num_replicas: int) -> float:
    """Returns how often a replica sends each byte in a ring all-reduce.

    A ring sends each of N pieces N-1 times to add it and N-1 times to distribute the
    sum: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    return 2 * (num_replicas - 1) / num_replicas
