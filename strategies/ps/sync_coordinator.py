"""Steps of parameter servers in which an update waits for its workers.

As in TensorFlow 1's SyncReplicasOptimizer, which TensorFlow 2 has no successor of,
all workers compute on the same weights, and an update adds up the gradients of the
first N to finish; those of the B backup workers that come later are left out (Chen
et al., Revisiting Distributed Synchronous SGD, 2016). The loop that sets a step
going, waits for its gradients and applies them runs inside the runtime, and so does
a loop on each worker: no step passes through Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import tensorflow as tf

from strategies.common.private_apis import own_executor
from strategies.common.types import (
    Agreed,
    Observe,
    Pending,
    ReplicaStep,
    Shares,
    StepResults,
    Update,
)
from strategies.inner_loop.input import ByIndex
from strategies.inner_loop.loop import InnerLoop, Step
from strategies.inner_loop.reduction import scaled
from strategies.ps.async_coordinator import Feed
from strategies.ps.gradient_queues import ShareQueues
from strategies.ps.step_tokens import Turns
from strategies.ps.sync_worker import WorkerLoop, WorkersUnderWay


class SynchronousSteps:
    """Steps that one task leads and all workers share. Satisfies `RunSteps`."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        chief: str,
        servers: Sequence[str],
        num_workers: int,
        num_required: int,
        replica_step: ReplicaStep,
        update: Update,
    ):
        """Traces nothing and sets nothing going yet.

        Args:
          coordinator: hands closures to workers.
          chief: a device of this process.
          servers: a device of each parameter server.
          num_workers: how many there are.
          num_required: how many of them an update waits for.
          replica_step: computes one worker's shares.
          update: applies their sum.
        """
        self._coordinator = coordinator
        # A server leads twice as fast as the chief (17 against 34 ms a step of the mlp
        # on a busy machine), but servers are kept from talking to each other: the
        # device filters of ParameterServerStrategy let them see chief and workers.
        self._leader = servers[0] if len(servers) == 1 else chief
        self._num_required = num_required
        self._update = update
        self._turns = Turns(servers[0], num_workers)
        self._queues = ShareQueues(servers, update.devices(), num_workers, num_required)
        self._worker = WorkerLoop(
            coordinator.strategy,
            self._turns,
            self._queues,
            num_required,
            replica_step,
            update,
        )
        self._under_way: WorkersUnderWay | None = None
        step = Step(
            sum_shares=lambda take, batch: take(batch),
            apply=self._apply,
            first=lambda summed: summed,
            input=ByIndex(lambda batches, index: index),
        )
        self._loop = InnerLoop(step, self._take, update)

    def trace(self, batches: Feed) -> tf.Graph:
        self._start_workers(batches)
        with tf.device(self._leader), _advice_hidden():
            self._loop.trace(None)
        return self._worker.graph

    def num_traces(self) -> int:
        workers = self._worker.function.experimental_get_tracing_count()
        return max(workers, self._loop.num_traces())

    def __call__(
        self,
        batches: Feed,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        self._start_workers(batches)
        return _Led(lambda: self._lead(num_steps, observe, proposed))

    def free_workers(self, patience_seconds: float | None = None) -> None:
        """Ends the workers' closures, so that others can be scheduled.

        Args:
          patience_seconds: how long to wait for them; None for as long as it takes.

        Raises:
          tf.errors.OpError: what made one of them fail.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._turns.end()
            under_way.wait(patience_seconds)

    def _start_workers(self, feed: Feed) -> None:
        """Schedules a closure for each worker, unless they are under way."""
        if self._under_way is not None:
            return
        # Known when the closure is traced, with the first input; others read alike.
        self._worker.batches = self._worker.batches or feed.batches
        self._turns.reset()
        for share, tokens in enumerate(self._turns.token_queues()):
            arguments = (feed.residents, tf.constant(share, tf.int64), tokens)
            self._coordinator.schedule(self._worker.function, args=arguments)
        self._under_way = WorkersUnderWay(self._coordinator, self._queues.give_up)

    def _lead(
        self, num_steps: int, observe: Observe, proposed: Agreed | None
    ) -> StepResults:
        # It waits for workers, and the coordinator's threads must not wait for it.
        with own_executor(), tf.device(self._leader), _advice_hidden():
            results = self._loop(None, num_steps, observe, proposed).fetch()
        if self._under_way is not None:
            self._under_way.raise_failure()
        return results

    def _take(self, index: tf.Tensor) -> Shares:
        """Sets the next step going and waits for the sum of its shares."""
        with tf.control_dependencies([index]):
            applied = self._update.applied_updates()
        with tf.control_dependencies([applied]):
            attempt = self._turns.next_attempt()
        shares, counts, late = self._queues.take(attempt)
        num_rows, global_size, versions = tf.unstack(counts)
        sums = {
            **shares.sums,
            "staleness": tf.cast(applied, tf.float64) - versions / self._num_required,
            "late_gradients": late,
        }
        if self._queues.leaves_out_late_ones:
            # Shares are parts of a whole batch, and those that came first may be of
            # more or fewer examples than that.
            shares = _scaled(shares, global_size / self._num_required / num_rows)
        return shares._replace(sums=sums)

    def _apply(self, update: Update, summed: Shares) -> Mapping[str, tf.Tensor]:
        def apply() -> tf.Tensor:
            # Weight decay and the optimizer's counter do not depend on gradients:
            # without this they change while other servers' are still awaited.
            present = [v for v in tf.nest.flatten(summed) if v is not None]
            with tf.control_dependencies(present):
                self._coordinator.strategy.run(update.apply, args=(summed,))
            return tf.constant(0)

        # A function ends when all it changes is changed.
        applied = tf.function(apply, autograph=False)()
        with tf.control_dependencies([applied]):
            update.count()
        return {}


def _scaled(shares: Shares, factor: tf.Tensor) -> Shares:
    """Gradients and state times a factor."""
    return shares._replace(
        gradients=[scaled(gradient, factor) for gradient in shares.gradients],
        state=tf.nest.map_structure(lambda value: scaled(value, factor), shares.state),
    )


@contextlib.contextmanager
def _advice_hidden() -> Iterator[None]:
    """Hides the advice to run everything on workers. This belongs with the weights."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclasses.dataclass(frozen=True, slots=True)
class _Led:
    """Steps that are run when they are asked for. Satisfies `Pending`."""

    lead: Callable[[], StepResults]

    def fetch(self) -> StepResults:
        """Waits in Python, which handles no signal while TensorFlow waits."""
        future: Future[StepResults] = Future()
        threading.Thread(target=self._lead_into, args=(future,), daemon=True).start()
        return future.result()

    def _lead_into(self, future: Future[StepResults]) -> None:
        try:
            future.set_result(self.lead())
        except BaseException as error:
            future.set_exception(error)
