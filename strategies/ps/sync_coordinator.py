"""Coordinator of synchronous updates on parameter servers.

As in TensorFlow 1's SyncReplicasOptimizer, which has no successor in TensorFlow 2, all
workers compute on the same weights, and an update sums the gradients of the first N
workers to finish. It drops the later gradients of the B backup workers (Chen et al.,
Revisiting Distributed Synchronous SGD, 2016). The loop that starts a step, waits for
its gradients and applies them runs inside the runtime, and so does a loop on each
worker: no step passes through Python.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import tensorflow as tf

from strategies.cluster.failure_detection import PEER_ERRORS
from strategies.common.private_apis.clusters import own_executor
from strategies.common.types import (
    ReplicaFunction,
    ReplicaOutputs,
    StepResults,
    SummaryLevel,
    SyncedFlags,
    Update,
)
from strategies.inner_loop.input import IndexedInput
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.reduction import scaled, with_finite_checks_of_sum
from strategies.inner_loop.results import (
    DROPPED_GRADIENTS,
    OWN_FINITE_CHECKS,
    STALENESS,
)
from strategies.inner_loop.step import Step
from strategies.ps.compressed_push import WholeGradients
from strategies.ps.gradient_queues import GradientQueues
from strategies.ps.step_tokens import StepTokens
from strategies.ps.sync_worker import (
    GLOBAL_SIZE,
    NUM_ROWS,
    VERSION,
    WorkerLoop,
)
from strategies.ps.worker_input import WorkerInput

_CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"


class SynchronousSteps:
    """Training loop that one task leads for all workers. Satisfies `LoopFunction`."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        servers: Sequence[str],
        num_workers: int,
        num_required: int,
        gradients: WholeGradients,
        replica_step: ReplicaFunction,
        update: Update,
    ):
        """Traces nothing and starts no worker yet."""
        self._coordinator = coordinator
        # A server leads twice as fast as the chief (17 against 34 ms a step of the mlp
        # on a busy machine). Several servers cannot exchange anything: the device
        # filters of ParameterServerStrategy let them see only the chief and workers.
        self._leader = servers[0] if len(servers) == 1 else _CHIEF
        self._update = update
        self._tokens = StepTokens(servers[0], num_workers)
        self._queues = GradientQueues(
            servers, update.devices(), num_workers, num_required
        )
        self._worker = WorkerLoop(
            coordinator.strategy,
            self._tokens,
            self._queues,
            gradients,
            replica_step,
            update,
        )
        self._under_way: WorkersUnderWay | None = None
        # The replica step of this loop is `_take`: workers compute, and the queues sum.
        step = Step(
            all_reduce_gradients=lambda take, batch: take(batch),
            apply=self._apply,
            input=IndexedInput(lambda batches, index: index),
        )
        self._loop = InnerLoop(step, self._take, update)

    def trace(self, batches: WorkerInput) -> tf.Graph:
        self._start_workers(batches, 0)
        with tf.device(self._leader), _advice_hidden():
            self._loop.trace(None)
        return self._worker.graph

    def num_traces(self) -> int:
        workers = self._worker.function.experimental_get_tracing_count()
        return max(workers, self._loop.num_traces())

    def __call__(
        self,
        batches: WorkerInput,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepResults:
        if batches.is_exhausted:
            # The closures read from the window that they were scheduled with.
            self.free_workers()
        self._start_workers(batches, num_steps)
        return _in_thread(lambda: self._lead(num_steps, observe, local_flags))

    def free_workers(self, patience_seconds: float | None = None) -> None:
        """Ends the workers' closures, so that other closures can be scheduled.

        Args:
          patience_seconds: Longest wait for the closures; None for no limit.
        """
        # Cleared first: after an error the next call schedules new closures.
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._tokens.end()
            under_way.wait(patience_seconds)

    def _start_workers(self, batches: WorkerInput, num_steps: int) -> None:
        """Schedules a closure for each worker, unless the closures are under way."""
        cached_data = batches.take(num_steps)
        if self._under_way is not None:
            return
        # The closure is traced with the first input. Later inputs read batches in the
        # same way.
        self._worker.batches = self._worker.batches or batches.batches
        self._tokens.reset()
        for shard_index, tokens in enumerate(self._tokens.token_queues()):
            arguments = (cached_data, tf.constant(shard_index, tf.int64), tokens)
            self._coordinator.schedule(self._worker.function, args=arguments)
        self._under_way = WorkersUnderWay(self._coordinator, self._queues.give_up)

    def _lead(
        self, num_steps: int, observe: SummaryLevel, local_flags: SyncedFlags | None
    ) -> StepResults:
        # It waits for workers, and the coordinator's threads must not wait for it.
        with own_executor(), tf.device(self._leader), _advice_hidden():
            results = self._loop(None, num_steps, observe, local_flags)
        if self._under_way is not None:
            self._under_way.raise_failure()
        return results

    def _take(self, index: tf.Tensor) -> ReplicaOutputs:
        """Starts the next step and waits for the sum of its replica outputs."""
        # Control dependencies keep the order: the number of applied updates is read
        # before workers can start the attempt.
        with tf.control_dependencies([index]):
            applied = self._update.applied_updates()
        with tf.control_dependencies([applied]):
            attempt = self._tokens.next_attempt()
        outputs, late = self._queues.take(attempt)
        if OWN_FINITE_CHECKS in outputs.sums:
            outputs = with_finite_checks_of_sum(outputs)
        num_required = self._queues.num_required
        sums = dict(outputs.sums)
        num_rows, global_size = sums.pop(NUM_ROWS), sums.pop(GLOBAL_SIZE)
        versions = sums.pop(VERSION)
        sums[STALENESS] = tf.cast(applied, tf.float64) - versions / num_required
        sums[DROPPED_GRADIENTS] = late
        if self._queues.has_backup_workers:
            # The first shards to arrive may have more or fewer examples in total than a
            # whole batch, so that the sum is scaled to a whole batch. `global_size` is
            # a sum over `num_required` workers, as `num_rows` is.
            outputs = _scaled(outputs, global_size / num_required / num_rows)
        return outputs._replace(sums=sums)

    def _apply(self, update: Update, summed: ReplicaOutputs) -> None:
        def apply() -> tf.Tensor:
            # Weight decay and the optimizer's counter do not depend on gradients.
            # Without this dependency they would change while gradients of other servers
            # are still awaited.
            present = [v for v in tf.nest.flatten(summed) if v is not None]
            with tf.control_dependencies(present):
                self._coordinator.strategy.run(update.apply, args=(summed,))
            return tf.constant(0)

        # A `tf.function` ends once it has changed all its variables.
        applied = tf.function(apply, autograph=False)()
        with tf.control_dependencies([applied]):
            update.increment_step()


class WorkersUnderWay:
    """Scheduled closures of the workers, with a thread that waits for their ends."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        give_up: Callable[[], None],
    ):
        """Starts the thread, which calls `give_up` if a closure fails."""
        self._coordinator = coordinator
        self._give_up = give_up
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait(self, patience_seconds: float | None) -> None:
        """Waits for the end of all closures, and raises the error of a failed one."""
        self._thread.join(patience_seconds)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises the error of a failed closure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        try:
            self._coordinator.join()
        except BaseException as failure:
            # Stored before the wait ends, so that the waiting thread finds the failure.
            self._failure = failure
            # If a server was lost, what waits there has ended already.
            with contextlib.suppress(*PEER_ERRORS):
                self._give_up()


def _scaled(outputs: ReplicaOutputs, factor: tf.Tensor) -> ReplicaOutputs:
    """Returns outputs with gradients and state times a factor."""
    return outputs._replace(
        gradients=[scaled(gradient, factor) for gradient in outputs.gradients],
        state=tf.nest.map_structure(lambda value: scaled(value, factor), outputs.state),
    )


@contextlib.contextmanager
def _advice_hidden() -> Iterator[None]:
    """Hides TensorFlow's advice to run all functions on workers."""
    # The leading loop belongs on the task with the weights.
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)


def _in_thread(lead: Callable[[], StepResults]) -> StepResults:
    """Returns the results of steps that a thread runs."""
    # Python handles no signal while its main thread waits inside TensorFlow. A wait for
    # a future is a wait in Python.
    future: Future[StepResults] = Future()

    def run() -> None:
        try:
            future.set_result(lead())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()
