"""Steps of workers that do not wait for each other: handed out, and their results.

What a worker does in a step is in `asynchronous_worker.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.cluster.resolver import task_of
from strategies.common.private_apis import values_where_they_are
from strategies.common.types import (
    Agreed,
    GlobalBatches,
    Observe,
    Pending,
    ReplicaStep,
    StepResults,
    Update,
)
from strategies.inner_loop.loop import InnerLoop, loop_arguments
from strategies.inner_loop.staleness import joined
from strategies.ps.applied_steps import Journal
from strategies.ps.async_worker import AsynchronousWorker
from strategies.ps.tensor_packing import Envelope

# In place of the name of a worker that was lost before it told of its steps.
_LOST = "lost"
# To schedule a closure and to fetch what it returns takes 20 ms where two workers, a
# server and a chief share two cores: a convolutional network went through 3,300
# examples a second in closures of 0.1 s, 3,730 in those of 0.25 s and 3,880 in those of
# 0.5 s, which is all of a call.
_MOST_CLOSURE_SECONDS = 0.5


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
        self._num_workers = num_workers
        self._attempts = attempts
        self._attempts_seen = int(attempts.numpy())
        self._free_workers = free_workers
        # Until it is known: a step for each closure.
        self._typical_step_seconds = _MOST_CLOSURE_SECONDS
        self._num_calls = 0
        self._envelope = Envelope()
        self._journal = None
        if update is not None:
            self._journal = Journal(update.counter_device())
        self._worker = AsynchronousWorker(
            coordinator.strategy, self._journal, attempts, update
        )
        self._loop = InnerLoop(self._worker.step(), replica_step, update)
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
        self._worker.batches = self._worker.batches or batches.batches
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
        journal = self._journal
        told: list[tf.Tensor] = []
        if journal is not None:
            num_before = tf.shape(journal.done(call, first_step, num_steps))[0]
            told = [num_before]
        else:
            num_before = tf.constant(0)
        after_those = (residents, first_step + tf.cast(num_before, tf.int64), call)
        outputs, _ = self._loop.function_of(after_those)(
            after_those, num_steps - num_before, observe, proposed
        )
        if journal is not None:
            done = journal.done(call, first_step, num_steps)
            told += [done, journal.noted(done)]
        sealed = self._envelope.seal([*outputs, *told])
        with tf.device(self._attempts.device):
            kept = tf.identity(sealed)
        return kept, tf.zeros([])

    def results_of(
        self, closure: Any, observe: Observe
    ) -> Sequence[tuple[StepResults, str]]:
        """What a closure's steps reported, and to whom; waits for it."""
        sealed, mark = values_where_they_are(closure)
        parts = self._envelope.open(sealed.numpy())
        if self._journal is None:
            return [(self._loop.results(parts), task_of(mark))]
        *outputs, num_before, done, noted = parts
        results = self._loop.results(outputs)
        sums, staleness = self._journal.read(done, noted)
        num_lost = int(num_before)
        # A step that was not applied is not marked either.
        own = np.zeros(results.attempted_steps)
        own[: results.applied_steps] = staleness[num_lost:]
        found = [(dataclasses.replace(results, staleness=own), task_of(mark))]
        if num_lost:
            lost = StepResults(
                applied_steps=num_lost,
                sums={name: sums[name][:num_lost] for name in results.sums},
                # Their worker's clock was lost with it.
                step_seconds=np.full(num_lost, self._typical_step_seconds),
                input_seconds=np.zeros(num_lost),
                details={},
                agreed=results.agreed,
                attempted_steps=num_lost,
                staleness=staleness[:num_lost],
            )
            found.insert(0, (lost, _LOST))
        return found

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
