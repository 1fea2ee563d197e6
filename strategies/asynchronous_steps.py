"""Steps that workers of parameter servers compute and apply without waiting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.base import (
    Agreed,
    Batch,
    GlobalBatches,
    Observe,
    Pending,
    ReplicaStep,
    Shares,
    StepResults,
    Update,
)
from strategies.envelope import Envelope
from strategies.inner_loop import InnerLoop, Step, loop_arguments
from strategies.journal import Journal
from strategies.library_internals import values_where_they_are
from strategies.resolver import task_of
from strategies.stale_updates import (
    REPORTED,
    apply_then_count,
    joined,
    read_then_compute,
)

# In place of the name of a worker that was lost before it told of its steps.
_LOST = "lost"
# To schedule a closure and to fetch what it returns takes 20 ms where two workers, a
# server and a chief share two cores: an update of a 5-10-2 network took 5.0 ms in
# closures of 20 ms, 2.7 in closures of 200.
_MOST_CLOSURE_SECONDS = 0.1


@dataclasses.dataclass(slots=True)
class Feed:
    """The input of all workers.

    Attributes:
      residents: on each worker, what batches are read from.
      batches: reads them.
      next_step: the step that is handed out next.
    """

    residents: Any
    batches: GlobalBatches
    next_step: int


class AsynchronousSteps:
    """Steps in closures, each of which one worker runs. Satisfies `RunSteps`."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        num_workers: int,
        replica_step: ReplicaStep,
        update: Update | None,
        attempts: tf.Variable,
        free_workers: Callable[[], None],
    ):
        """Traces nothing yet.

        Args:
          coordinator: hands closures to workers.
          num_workers: how many there are.
          replica_step: computes the shares of a whole global batch.
          update: applies them; None to only add up.
          attempts: int64 scalar on a server, which counts every step that is begun.
          free_workers: called first, in case something else still has them.
        """
        self._coordinator = coordinator
        self._strategy = coordinator.strategy
        self._num_workers = num_workers
        self._attempts = attempts
        self._attempts_seen = int(attempts.numpy())
        self._free_workers = free_workers
        self._batches: GlobalBatches | None = None
        # Until it is known: a step for each closure.
        self._typical_step_seconds = _MOST_CLOSURE_SECONDS
        self._num_calls = 0
        self._envelope = Envelope()
        self._journal = None
        if update is not None:
            self._journal = Journal(update.counter_device())
        step = Step(
            self._compute if update is None else self._read_and_compute(update),
            self._apply,
            first=lambda summed: summed[0],
            next_batch=self._next_batch,
            reported=() if update is None else REPORTED,
        )
        self._loop = InnerLoop(step, replica_step, update)
        self._function = tf.function(self._run, autograph=False)

    def trace(self, batches: Feed) -> tf.Graph:
        """Traces by running no step: a closure's input exists on workers only."""
        self(batches, 0).fetch()
        return self._loop.graph

    def num_traces(self) -> int:
        return self._loop.num_traces()

    def __call__(
        self,
        batches: Feed,
        num_steps: int,
        observe: Observe = Observe.NOT,
        proposed: Agreed | None = None,
    ) -> Pending:
        self._free_workers()
        self._num_calls += 1
        call = tf.constant(self._num_calls, tf.int64)
        # Known when the loop is traced, with the first input; later inputs read alike.
        self._batches = self._batches or batches.batches
        closures: list[tuple[Any, Observe]] = []
        most = _MOST_CLOSURE_SECONDS / self._typical_step_seconds
        counts = divided(num_steps, self._num_workers, most)
        for index, count in enumerate(counts):
            looked = observe if index == len(counts) - 1 else Observe.NOT
            position = tf.constant(batches.next_step, tf.int64)
            closure = self._coordinator.schedule(
                self._function,
                args=(
                    (batches.residents, position, call),
                    *loop_arguments(count, looked, proposed or Agreed()),
                ),
            )
            closures.append((closure, looked))
            batches.next_step += count
        return _Scheduled(closures, self)

    def _run(
        self,
        batches: tuple[Any, tf.Tensor, tf.Tensor],
        num_steps: tf.Tensor,
        observe: tf.Tensor,
        proposed: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What the steps report, with those done before, in an envelope; and a mark.

        The first is left on a server: a worker that is lost after a closure would take
        with it what it has not sent yet. What stays behind only tells which worker it
        was.
        """
        residents, first_step, call = batches
        before: list[tf.Tensor] = []
        if self._journal is not None:
            done = self._journal.done(call, first_step, num_steps)
            before = [done]
            first_step += tf.shape(done, tf.int64)[0]
            num_steps -= tf.shape(done)[0]
        outputs = self._loop.function(
            (residents, first_step, call), num_steps, observe, proposed
        )
        if self._journal is not None:
            before.append(self._journal.noted(done))
        sealed = self._envelope.seal([*outputs, *before])
        with tf.device(self._attempts.device):
            kept = tf.identity(sealed)
        return kept, tf.zeros([])

    def results_of(
        self, closure: Any, observe: Observe
    ) -> Sequence[tuple[StepResults, str]]:
        """What a closure's steps reported, and to whom; waits for it."""
        sealed, mark = values_where_they_are(closure)
        parts = self._envelope.open(sealed.numpy())
        before = [] if self._journal is None else [parts.pop(), parts.pop()]
        results = self._loop.results(parts, observe)
        found = [(results, task_of(mark))]
        if before and len(before[1]):
            noted, done = before
            found.insert(0, (self._results_before(done, noted, results), _LOST))
        return found

    def _results_before(
        self, done: np.ndarray, noted: np.ndarray, after: StepResults
    ) -> StepResults:
        """Of steps whose worker was lost after them, and its clock with it."""
        if self._journal is None:
            raise RuntimeError("only updates are kept in a journal")
        sums, staleness = self._journal.read(done, noted)
        num_steps = len(done)
        return StepResults(
            applied_steps=num_steps,
            sums={name: sums[name] for name in after.sums},
            step_seconds=np.full(num_steps, self._typical_step_seconds),
            input_seconds=np.zeros(num_steps),
            details={},
            agreed=after.agreed,
            attempted_steps=num_steps,
            staleness=staleness,
        )

    def learn(self, step_seconds: np.ndarray) -> None:
        """Adapts how many steps a closure has to how long they take on a worker."""
        if len(step_seconds):
            self._typical_step_seconds = max(float(np.median(step_seconds)), 1e-6)

    def take_attempts(self) -> int:
        """Steps begun since this was last asked, on whichever worker.

        One that was begun by a worker that was lost, and is not marked, counts again.
        """
        attempts = int(self._attempts.numpy())
        since, self._attempts_seen = attempts - self._attempts_seen, attempts
        return since

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def _next_batch(self, batches: Any, index: tf.Tensor) -> _Task:
        if self._batches is None:
            raise RuntimeError("steps are traced before there is input")
        residents, first_step, call = batches
        step = first_step + tf.cast(index, tf.int64)
        return _Task(self._batches.at(next(residents), step, 0, 1), call)

    def _compute(self, replica_step: ReplicaStep, task: _Task) -> tuple[Shares, Any]:
        return self._strategy.run(replica_step, args=(task.batch,)), ()

    def _read_and_compute(
        self, update: Update
    ) -> Callable[[ReplicaStep, _Task], tuple[Shares, Any]]:
        def compute(replica_step: ReplicaStep, task: _Task) -> tuple[Shares, Any]:
            begun = self._attempts.assign_add(1, read_value=False)
            with tf.control_dependencies([begun]):
                shares, version = read_then_compute(
                    update,
                    lambda own: self._strategy.run(replica_step, args=(own,)),
                    task.batch,
                )
                return shares, (version, task.call, task.batch.step)

        return compute

    def _apply(
        self, update: Update, summed: tuple[Shares, Any]
    ) -> Mapping[str, tf.Tensor]:
        shares, (version, call, step) = summed
        journal = self._journal
        if journal is None:
            raise RuntimeError("updates are kept in a journal")

        entry = journal.entry(call, step, shares.sums, version)

        def apply_and_note() -> None:
            self._strategy.run(update.apply, args=(shares,))
            journal.note(entry)

        return apply_then_count(
            update,
            apply_and_note,
            version,
            counted=lambda count: journal.mark(entry, count),
        )


def divided(num_steps: int, num_workers: int, most: float) -> Sequence[int]:
    """Steps of each closure of a call: as many for every worker, if they can be.

    Args:
      num_steps: of the call; for none there is a closure without steps.
      num_workers: who compute them side by side.
      most: steps that a closure should have, if not less than one.
    """
    num_rounds = math.ceil(num_steps / max(most, 1) / num_workers)
    num_closures = max(min(num_rounds * num_workers, num_steps), 1)
    least, more = divmod(num_steps, num_closures)
    return [least + (index < more) for index in range(num_closures)]


class _Task(NamedTuple):
    """What a step is given.

    Attributes:
      batch: the whole global batch.
      call: int64 scalar, the call of the inner loop that the step is part of.
    """

    batch: Batch
    call: tf.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _Scheduled:
    """Closures in the order of their steps. Satisfies `Pending`."""

    closures: Sequence[tuple[Any, Observe]]
    steps: AsynchronousSteps

    def fetch(self) -> StepResults:
        found = [pair for c in self.closures for pair in self.steps.results_of(*c)]
        parts, workers = zip(*found, strict=True)
        self.steps.learn(np.concatenate([part.step_seconds for part in parts]))
        results = joined(parts, workers, self.steps.num_workers)
        return dataclasses.replace(results, attempted_steps=self.steps.take_attempts())
