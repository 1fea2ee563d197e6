"""A copy of the weights in every process, kept equal by all-reduce.

With `--average=parameters` the copies drift apart and are averaged every few steps, as
`strategies.parameter_averaging` does on the devices of one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import Strategy, Traits
from strategies.cluster.failure_detection import PEER_ERRORS
from strategies.cluster.peer_silence import SilenceWatchdog
from strategies.cluster.rendezvous import wait_for_cluster
from strategies.cluster.resolver import resolver_of
from strategies.cluster.spec import Cluster
from strategies.cluster.startup_watchdog import StartUpWatchdog
from strategies.collectives.chief_values import ChiefValues
from strategies.collectives.gathering import gathered_messages
from strategies.collectives.optimizer_shard import OptimizerShard
from strategies.collectives.sharded_update import ShardedUpdate
from strategies.collectives.update_exchange import SummedGradients, UpdateExchange
from strategies.common.errors import UsageError
from strategies.common.private_apis.clusters import give_up_connecting
from strategies.common.private_apis.collectives import make_variables_of_all_types
from strategies.common.types import (
    Batch,
    Communication,
    GlobalBatches,
    LoopFunction,
    ReplicaFunction,
    StreamedBatches,
    Update,
)
from strategies.config import StrategyConfig
from strategies.devices.assignment import check_one_replica
from strategies.gradient_compression.compressed_sum import CompressedSum
from strategies.inner_loop.all_reduce import all_reduce_packed
from strategies.inner_loop.input import StepChunks
from strategies.inner_loop.replicated import compile_replicated
from strategies.local_sgd.worker_averages import WorkerAverages

# Short, because all tasks have just answered in the rendezvous.
_SECONDS_TO_CONNECT = 10.0


class MultiWorkerMirrored(Strategy):
    """`tf.distribute.MultiWorkerMirroredStrategy`, with one buffer for each sum."""

    name = "multi_worker_mirrored"
    traits = Traits(
        synchronous=True,
        multi_process=True,
        matches_one_device=True,
        supports_streaming=True,
        updates_in_turn=True,
        reuses_traces=True,
        sums_in_forward_pass=True,
        averages=("gradients", "parameters"),
        roles=("worker",),
        optional_roles=("chief", "evaluator"),
        exchange="ring",
        own_settings=(
            "all_reduce_dtype",
            "gradient_compression",
            "shard_optimizer_state",
            "collective_implementation",
        ),
        summary="A copy of the weights per process, gradients summed over the network.",
    )

    def __init__(self, config: StrategyConfig, cluster: Cluster):
        self._rank = cluster.rank
        self._config = config
        self._exchange: UpdateExchange | None = None
        implementation = tf.distribute.experimental.CommunicationImplementation(
            config.collective_implementation.upper()
        )
        # Without a time limit: a chief may save, or run a program's code, for any time.
        # A dead task is detected at once, a silent one by `SilenceWatchdog`, and one
        # without progress by the watchdog of the run.
        communication = tf.distribute.experimental.CommunicationOptions(
            implementation=implementation
        )
        # Waits for all tasks before TensorFlow, which would wait in C++ without a
        # message.
        wait_for_cluster(cluster, config.startup_timeout_seconds)
        jobs = [job for job in ("chief", "worker") if job in cluster.addresses]
        num_tasks = {job: len(cluster.addresses[job]) for job in jobs}
        # In the order of `Cluster.computing`.
        tasks = [f"{job}/task:{i}" for job in jobs for i in range(num_tasks[job])]
        give_up_connecting(num_tasks, _SECONDS_TO_CONNECT)
        self._start_up = StartUpWatchdog(cluster)
        self._silence_watchdog = SilenceWatchdog(cluster, config.peer_timeout_seconds)
        self._strategy = self._start_up.call(
            lambda: tf.distribute.MultiWorkerMirroredStrategy(
                resolver_of(cluster), communication
            )
        )
        make_variables_of_all_types(self._strategy)
        self._chief_values = ChiefValues(self._strategy, self._rank)
        self._num_local = self._strategy.num_replicas_in_sync // len(tasks)
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        self.devices = [
            f"/job:{task}/device:{kind}:{index}"
            for task in tasks
            for index in range(self._num_local)
        ]

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> MultiWorkerMirrored:
        cls.check_devices(config)
        return cls(config, cluster)

    @classmethod
    def check_devices(cls, config: StrategyConfig) -> None:
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        if config.collective_implementation == "nccl" and not has_gpu:
            raise UsageError(
                "--set=strategy.collective_implementation=nccl needs GPUs and none was "
                "found: use auto or ring."
            )
        if config.shard_optimizer_state:
            check_one_replica()

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def distribute(self, batches: GlobalBatches) -> Any:
        """Reads only the rows of this process's replicas."""
        first = self._rank * self._num_local
        shards = range(first, first + self._num_local)
        if isinstance(batches, StreamedBatches):
            return StepChunks(batches.spans_of_shards(shards, self.num_replicas))
        spans = tuple(batches.spans(shard, self.num_replicas) for shard in shards)
        return StepChunks(tf.data.Dataset.zip(spans))

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> LoopFunction:
        if update is None:
            return compile_replicated(
                self._strategy, self._own_shard, all_reduce_packed, replica_step, None
            )
        self._exchange = self._exchange_for(update)
        return self._exchange.compile(self._own_shard, replica_step)

    def _exchange_for(self, update: Update) -> UpdateExchange:
        config, strategy, rank = self._config, self._strategy, self._rank
        if config.averaged == "parameters":
            return WorkerAverages(strategy, rank, update, config)
        # A single replica sends nothing, and has the whole state in any case.
        if config.compression and self.num_replicas > 1:
            return CompressedSum(strategy, rank, config.compression, update)
        if config.shard_optimizer_state and self.num_replicas > 1:
            return ShardedUpdate(strategy, rank, update, config.all_reduce_dtype)
        return SummedGradients(strategy, update, config.all_reduce_dtype)

    def _own_shard(
        self, shards: tuple[Batch, ...], context: tf.distribute.ReplicaContext
    ) -> Batch:
        if self._num_local == 1:
            return shards[0]
        local = context.replica_id_in_sync_group % self._num_local
        # The replica's id is a tensor: the shard is selected inside the graph.
        return tf.switch_case(local, [lambda shard=shard: shard for shard in shards])

    def optimizer_shard(self) -> OptimizerShard | None:
        return self._exchange.optimizer_shard() if self._exchange else None

    def replica_state(self) -> Sequence[tf.Variable]:
        return self._exchange.variables() if self._exchange else ()

    def gather_replica_state(self) -> None:
        if self._exchange is not None:
            self._exchange.gather()

    def average_replica_variables(self) -> None:
        if self._exchange is not None:
            self._exchange.average()

    def messages_of_all(self, message: bytes) -> Sequence[bytes]:
        return gathered_messages(self._strategy, message)[:: self._num_local]

    def wait_until_all_are_done(self) -> None:
        # A collective ends on one task while others still read its messages, and fails
        # there if that task then exits: under load, the chief of 6 of about 30 diverged
        # runs ended with 138. So all meet once more. A task that loses another one here
        # knows that every task has ended its last collective.
        with contextlib.suppress(*PEER_ERRORS):
            self.barrier()

    def broadcast_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        self._chief_values.assign(variables)
        self._start_up.end()
        self._silence_watchdog.start()

    def barrier(self) -> None:
        self._chief_values.meet()

    def close(self) -> None:
        self._start_up.end()
        self._silence_watchdog.end()

    def communication(self, gradient_bytes: int) -> Communication | None:
        if self.num_replicas == 1 or self._exchange is None:
            return None
        return self._exchange.communication(gradient_bytes)
