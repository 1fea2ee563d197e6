"""Coordinator of asynchronous workers and their results.

`strategies.ps.async_worker` has the step of a worker.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.cluster.resolver import task_of
from strategies.common.private_apis.clusters import values_where_they_are
from strategies.common.types import (
    ReplicaFunction,
    StepResults,
    SummaryLevel,
    SyncedFlags,
    Update,
)
from strategies.inner_loop.loop import InnerLoop, loop_arguments
from strategies.inner_loop.results import join_results
from strategies.ps.applied_steps import AppliedSteps
from strategies.ps.async_worker import AsynchronousWorker
from strategies.ps.tensor_packing import ResultPacking
from strategies.ps.worker_input import WorkerInput

# Name of a worker that died before it returned the results of its steps.
_LOST = "lost"
# Scheduling a closure and fetching its result take 20 ms where two workers, a server
# and a chief share two cores. A convolutional network had 3,300 examples a second with
# closures of 0.1 s, 3,730 with 0.25 s and 3,880 with 0.5 s, the length of a call.
_MOST_CLOSURE_SECONDS = 0.5


class AsynchronousSteps:
    """Training loop of asynchronous workers in closures. Satisfies `LoopFunction`."""

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        num_workers: int,
        replica_step: ReplicaFunction,
        update: Update | None,
        attempts: tf.Variable,
        free_workers: Callable[[], None],
    ):
        """Traces nothing yet.

        `attempts` counts every step that is begun, on a server. `free_workers` ends
        other closures, before each call.
        """
        self._coordinator = coordinator
        self._num_workers = num_workers
        self._attempts = attempts
        self._attempts_seen = int(attempts.numpy())
        self._free_workers = free_workers
        # Until the duration is known, a closure has a single step.
        self._typical_step_seconds = _MOST_CLOSURE_SECONDS
        self._num_calls = 0
        self._packing = ResultPacking()
        self._applied_steps = None
        if update is not None:
            self._applied_steps = AppliedSteps(update.counter_device())
        self._worker = AsynchronousWorker(
            coordinator.strategy, self._applied_steps, attempts, update
        )
        self._loop = InnerLoop(self._worker.step(), replica_step, update)
        self._function = tf.function(self._run, autograph=False)

    def trace(self, batches: WorkerInput) -> tf.Graph:
        """Traces the loop and returns its graph."""
        # By a call with zero steps, because the input of a closure exists only on
        # workers.
        self(batches, 0)
        return self._loop.graph

    def num_traces(self) -> int:
        return self._loop.num_traces()

    def __call__(
        self,
        batches: WorkerInput,
        num_steps: int,
        observe: SummaryLevel = SummaryLevel.NONE,
        local_flags: SyncedFlags | None = None,
    ) -> StepResults:
        self._free_workers()
        self._num_calls += 1
        call = tf.constant(self._num_calls, tf.int64)
        # The loop is traced with the first input. Later inputs read batches in the same
        # way.
        self._worker.batches = self._worker.batches or batches.batches
        closures = []
        most = _MOST_CLOSURE_SECONDS / self._typical_step_seconds
        counts = divided(num_steps, self._num_workers, most)
        for index, count in enumerate(counts):
            level = observe if index == len(counts) - 1 else SummaryLevel.NONE
            position = tf.constant(batches.next_step, tf.int64)
            closure = self._coordinator.schedule(
                self._function,
                args=(
                    (batches.take(count), position, call),
                    *loop_arguments(count, level, local_flags or SyncedFlags()),
                ),
            )
            closures.append(closure)
        return self._results_of(closures)

    def _run(
        self,
        batches: tuple[Any, tf.Tensor, tf.Tensor],
        num_steps: tf.Tensor,
        observe: tf.Tensor,
        local_flags: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs a closure's steps and returns their packed results and a marker.

        The results include the steps that an earlier run of the closure applied.
        """
        cached_data, first_step, call = batches
        applied_steps = self._applied_steps
        # Evaluation changes nothing, so that a closure can run again as a whole.
        num_done = tf.constant(0)
        if applied_steps is not None:
            done = applied_steps.committed(call, first_step, num_steps)
            num_done = tf.shape(done)[0]
        rest = (cached_data, first_step + tf.cast(num_done, tf.int64), call)
        outputs, _ = self._loop.function_of(rest)(
            rest, num_steps - num_done, observe, local_flags
        )
        progress = []
        if applied_steps is not None:
            committed = applied_steps.committed(call, first_step, num_steps)
            progress = [num_done, committed, applied_steps.values(committed)]
        packed = self._packing.pack([*outputs, *progress])
        # The results move to a server, because a worker that dies after the closure
        # would take results with it. The zero stays on the worker and only shows which
        # worker ran the closure.
        with tf.device(self._attempts.device):
            kept = tf.identity(packed)
        return kept, tf.zeros([])

    def _results_of(self, closures: Sequence[Any]) -> StepResults:
        """Waits for the closures of a call and returns their joint results."""
        found = [pair for c in closures for pair in self._results_of_closure(c)]
        parts, workers = zip(*found, strict=True)
        step_seconds = np.concatenate([part.step_seconds for part in parts])
        if len(step_seconds):
            # Sets the length of later closures.
            self._typical_step_seconds = max(float(np.median(step_seconds)), 1e-6)
        # Steps begun on any worker since the last call. A step that a dead worker began
        # and did not commit counts again.
        attempts = int(self._attempts.numpy())
        num_begun, self._attempts_seen = attempts - self._attempts_seen, attempts
        results = join_results(parts, workers, self._num_workers)
        return dataclasses.replace(results, attempted_steps=num_begun)

    def _results_of_closure(self, closure: Any) -> Sequence[tuple[StepResults, str]]:
        """Waits for a closure and returns its results with the names of the workers."""
        packed, marker = values_where_they_are(closure)
        parts = self._packing.unpack(packed.numpy())
        if self._applied_steps is None:
            return [(self._loop.results(parts), task_of(marker))]
        *outputs, num_done, committed, values = parts
        results = self._loop.results(outputs)
        sums, staleness = self._applied_steps.read(committed, values)
        num_lost = int(num_done)
        # A last step that was not applied is not committed; its staleness stays zero.
        known = np.zeros(results.attempted_steps)
        known[: results.applied_steps] = staleness[num_lost:]
        found = [(dataclasses.replace(results, staleness=known), task_of(marker))]
        if num_lost:
            lost = StepResults(
                applied_steps=num_lost,
                sums={name: sums[name][:num_lost] for name in results.sums},
                # The measured times died with the worker.
                step_seconds=np.full(num_lost, self._typical_step_seconds),
                input_seconds=np.zeros(num_lost),
                details={},
                agreed=results.agreed,
                attempted_steps=num_lost,
                staleness=staleness[:num_lost],
            )
            found.insert(0, (lost, _LOST))
        return found


def divided(num_steps: int, num_workers: int, most: float) -> Sequence[int]:
    """Returns the number of steps of each closure of a call.

    Args:
      num_steps: Number of steps of the call; zero gives one closure without steps.
      num_workers: Number of workers that compute in parallel.
      most: Largest wanted number of steps of a closure; below one it counts as one.
    """
    # A multiple of the workers, so that all of them end at about the same time.
    num_rounds = math.ceil(num_steps / max(most, 1) / num_workers)
    num_closures = max(min(num_rounds * num_workers, num_steps), 1)
    least, more = divmod(num_steps, num_closures)
    return [least + (index < more) for index in range(num_closures)]
