"""Weights on parameter servers, gradients from workers."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.base import ShutdownPath, Strategy, Traits
from strategies.cluster.failure_detection import PEER_ERRORS
from strategies.cluster.probes import is_serving
from strategies.cluster.rendezvous import wait_for_cluster
from strategies.cluster.resolver import resolver_of
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.types import (
    Communication,
    GlobalBatches,
    LoopFunction,
    ReplicaFunction,
    StreamedBatches,
    Update,
)
from strategies.config import StrategyConfig
from strategies.ps.async_coordinator import AsynchronousSteps
from strategies.ps.compressed_push import CompressedGradients, WholeGradients
from strategies.ps.server import serve
from strategies.ps.sync_coordinator import SynchronousSteps
from strategies.ps.tensor_packing import read_here
from strategies.ps.variable_placement import BySize
from strategies.ps.worker_input import WindowedInput, WorkerInput

# Seconds for workers to return their closures when the run ends.
_SECONDS_TO_GIVE_BACK = 5.0
# Fewest steps of each worker in a call. All workers read weights at once in the first
# step of a call; in later steps their reads spread over time.
_FEWEST_STEPS_OF_EACH = 4


class ParameterServer(Strategy):
    """`tf.distribute.ParameterServerStrategy` with its coordinator.

    With `--update=async` one worker computes each update from a whole global batch. It
    reads the weights, computes a gradient, and applies it without waiting for the
    others. The weights it changes may differ from those it has read: the number of
    updates in between is the staleness of its gradient.

    With `--update=sync` the workers divide each global batch into shards. An update is
    applied once all workers but the backup workers have computed their gradients on the
    current weights.
    """

    name = "parameter_server"
    traits = Traits(
        synchronous=False,
        multi_process=True,
        matches_one_device=False,
        roles=("chief", "worker", "ps"),
        optional_roles=("evaluator",),
        server_jobs=("worker", "ps"),
        updates=("async", "sync"),
        exchange="servers",
        own_settings=("gradient_compression",),
        summary="Weights on parameter servers, gradients from workers.",
    )

    # At the end of a call, workers are idle while the last closure runs, about 20 ms.
    call_seconds = 0.5

    def __init__(self, config: StrategyConfig, cluster: Cluster):
        self._config = config
        self._cluster = cluster
        self._num_workers = len(cluster.addresses["worker"])
        self.devices = [
            f"/job:worker/task:{i}/device:CPU:0" for i in range(self._num_workers)
        ]
        if not config.is_synchronous:
            # In a call of fewer steps than workers, some of them have nothing to do.
            self.fewest_steps_per_call = _FEWEST_STEPS_OF_EACH * self._num_workers
        self._servers = [
            f"/job:ps/replica:0/task:{index}/device:CPU:0"
            for index in range(len(cluster.addresses["ps"]))
        ]
        self.read = read_here
        # Waits for all tasks before TensorFlow connects to them.
        wait_for_cluster(cluster, config.startup_timeout_seconds)
        self._strategy = tf.distribute.ParameterServerStrategy(resolver_of(cluster))
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._placement = BySize(self._servers)
        with tf.device(self._servers[0]):
            # Counts every step that a worker begins.
            self._attempts = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._cached_data: dict[object, Any] = {}
        self._synchronous: SynchronousSteps | None = None
        self._gradients = WholeGradients()

    @classmethod
    def create(cls, config: StrategyConfig, cluster: Cluster) -> ParameterServer:
        return cls(config, cluster)

    @classmethod
    def serve(
        cls, config: StrategyConfig, cluster: Cluster, shutdown_path: ShutdownPath
    ) -> int:
        return serve(config, cluster, pathlib.Path(shutdown_path(cluster.task)))

    def scope(self) -> AbstractContextManager[Any]:
        return self._placement.scope()

    def distribute(self, batches: GlobalBatches) -> WorkerInput:
        """Places the data that batches are read from on every worker, once.

        Raises:
          UsageError: There are backup workers, and the batches are a stream.
        """
        if isinstance(batches, StreamedBatches):
            if self._config.backup_workers:
                # They compute on later batches, which a window may not have.
                raise UsageError(
                    f"--backup_workers={self._config.backup_workers} does not fit data "
                    "that are a stream: give arrays, or --backup_workers=0."
                )
            return WindowedInput(batches)
        # Training and evaluation data are placed once each, not at every evaluation.
        if batches.data not in self._cached_data:
            self._free_workers()
            dataset = self._coordinator.create_per_worker_dataset(batches.cached_data)
            self._cached_data[batches.data] = iter(dataset)
        return WorkerInput(self._cached_data[batches.data], batches)

    def compile(
        self, replica_step: ReplicaFunction, update: Update | None
    ) -> LoopFunction:
        if update is None or not self._config.is_synchronous:
            return AsynchronousSteps(
                self._coordinator,
                self._num_workers,
                replica_step,
                update,
                attempts=self._attempts,
                free_workers=self._free_workers,
            )
        if self._config.compression is not None:
            self._gradients = CompressedGradients(
                self._config.compression, update, self._num_workers
            )
        self._synchronous = SynchronousSteps(
            self._coordinator,
            servers=self._servers,
            num_workers=self._num_workers,
            num_required=self._config.num_required(self._num_workers),
            gradients=self._gradients,
            replica_step=replica_step,
            update=update,
        )
        return self._synchronous

    def communication(self, gradient_bytes: int) -> Communication | None:
        # As many bytes of weights are read as whole gradients have.
        return Communication(
            algorithm="weights read from and gradients sent to parameter servers"
            + self._gradients.description,
            bytes_per_step_per_replica=gradient_bytes
            + self._gradients.bytes_sent(gradient_bytes),
        )

    def replica_state(self) -> Sequence[tf.Variable]:
        return self._gradients.variables()

    def gather_replica_state(self) -> None:
        # Workers store what they have left of their gradients when their loop ends.
        if self.replica_state():
            self._free_workers()

    def pause(self) -> None:
        # Workers would take no steps of another training, and a program that clears
        # Keras's session would wait for their closures for ever.
        self._free_workers()
        # Another training has other data: workers would keep both.
        self._cached_data.clear()
        self._synchronous = None

    def close(self) -> None:
        # A dead worker never returns its closure, so that the wait is limited.
        if self._synchronous is not None:
            self._synchronous.free_workers(_SECONDS_TO_GIVE_BACK)

    def shutdown_servers(self, shutdown_path: ShutdownPath, exit_code: int) -> None:
        failures: list[tf.errors.OpError] = []
        for job in self.traits.server_jobs:
            for index, address in enumerate(self._cluster.addresses[job]):
                # Writing would never return for a worker that is suspended.
                if not is_serving(address):
                    continue
                path = shutdown_path(f"{job}-{index}")
                try:
                    with tf.device(f"/job:{job}/task:{index}/device:CPU:0"):
                        tf.io.write_file(path, str(exit_code))
                except PEER_ERRORS:
                    # A worker that is just back does not know this chief yet. It exits
                    # when it sees that the chief has ended.
                    continue
                except tf.errors.OpError as error:
                    failures.append(error)
        # A full disk of one task must not keep the others from their files.
        if failures:
            raise failures[0]

    def _free_workers(self) -> None:
        """Ends the closures that a synchronous update keeps running on workers."""
        if self._synchronous is not None:
            self._synchronous.free_workers()
