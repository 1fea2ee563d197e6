"""Outer training loop, which advances the run and calls callbacks.

The loop is plain Python. The inner loop runs steps inside the TensorFlow runtime.
Callbacks write files, evaluate and print only between two calls of the inner loop.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from strategies.common.errors import DivergedError
from strategies.common.types import (
    BoundedInput,
    StepResults,
    SummaryLevel,
    SyncedFlags,
)
from trainers.loop.timing import Clock
from trainers.run_dir.train_state import TrainCounters

if TYPE_CHECKING:
    # Processes that only start runs import this module, and no TensorFlow.
    from trainers.loop.parts import TrainingParts

# Limits a call even if a step takes almost no time.
_MOST_STEPS_PER_CALL = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepEvent:
    """Results of one call of the inner loop, for callbacks.

    Attributes:
      step: Number of applied updates since the start of the run.
      last_step: Number of applied updates at the end of the run.
      results: Results of the steps of this call.
      call_seconds: Wall time of the call, including Python overhead.
      observed: Detail of the summaries of the last step of this call.
    """

    step: int
    last_step: int
    results: StepResults
    call_seconds: float
    observed: SummaryLevel = SummaryLevel.NONE

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


Callback = Callable[[StepEvent], None]


@dataclasses.dataclass(frozen=True, slots=True)
class When:
    """Callback with the steps at which it is due, the last step among them.

    Attributes:
      callback: Callback to run.
      next_step: Function from a step to the first later one at which the callback is
        due; None if it is due after every call of the inner loop.
      observe: Detail of the summaries of the step before the callback.
      holds: Function that returns whether the callback is to run at present.
    """

    callback: Callback
    next_step: Callable[[int], float] | None = None
    observe: SummaryLevel = SummaryLevel.NONE
    holds: Callable[[], bool] = lambda: True

    def next_after(self, step: int, last_step: int) -> int:
        """Returns the step at which the next call of the inner loop has to end."""
        if self.next_step is None or not self.holds():
            return last_step
        return int(min(self.next_step(step), last_step))

    def is_due(self, event: StepEvent) -> bool:
        if self.next_step is None:
            return True
        is_end = event.is_last or self.next_step(event.step - 1) == event.step
        return is_end and self.holds()


def every(steps: int | None) -> Callable[[int], float]:
    """Returns the next multiple of a number of steps; with None only the end is due."""
    return lambda step: math.inf if steps is None else step + steps - step % steps


def at(steps: Sequence[int]) -> Callable[[int], float]:
    """Returns the next of some ascending steps."""
    return lambda step: next((due for due in steps if due > step), math.inf)


class StepsPerLoop:
    """Number of steps in the next call of the inner loop."""

    def __init__(
        self, steps_per_loop: int | None, target_seconds: float, fewest: int = 1
    ):
        """Takes a fixed number; with None it aims at a duration of calls.

        These have at least `fewest` steps, apart from the first.
        """
        self._target_seconds = target_seconds
        self._fewest = fewest
        self._fixed = steps_per_loop
        # The first call runs one step, which measures the duration of a step.
        self._steps = steps_per_loop or 1

    @property
    def steps(self) -> int:
        return self._steps

    def learn(self, step_seconds: float) -> None:
        """Adapts the number of steps to the duration of a step, 0 if unknown."""
        if self._fixed is None and step_seconds:
            wanted = int(self._target_seconds / step_seconds)
            self._steps = min(max(wanted, self._fewest), _MOST_STEPS_PER_CALL)


def run_loop(
    parts: TrainingParts,
    batches: Any,
    callbacks: Sequence[When],
    clock: Clock,
    counters: TrainCounters,
    diagnose: Callable[[StepResults], str],
    stop_requested: Callable[[], bool],
) -> None:
    """Trains from the present step to the last one.

    Args:
      parts: Parts of the run, with the inner loop.
      batches: Input of the inner loop, which begins with the batch of the present step.
      callbacks: Callbacks with their triggers; due callbacks run in this order.
      clock: Clock that records the time of training and of its input.
      counters: Counters of the run, which include a diverged step.
      diagnose: Function that describes the values that were not finite in a step that
        was not applied.
      stop_requested: Function that returns whether this process was asked to stop; all
        processes learn of it with the next step.

    Raises:
      DivergedError: A loss or gradient was not finite; the update was not applied.
    """
    length = parts.config.length
    call_length = StepsPerLoop(
        length.steps_per_loop,
        parts.strategy.call_seconds,
        parts.strategy.fewest_steps_per_call,
    )
    step, last_step = parts.applied_steps(), parts.train_steps
    step_seconds = 0.0
    while step < last_step:
        most_steps = call_length.steps
        if isinstance(batches, BoundedInput):
            most_steps = min(most_steps, batches.steps_left())
        stop, observe = _until_due(callbacks, step, last_step, most_steps)
        with clock.measure("train") as timer:
            # The all-reduce of the step combines these values, so that all processes
            # stop at the same step and choose the same call length.
            local_flags = SyncedFlags(
                stop_requested=float(stop_requested()), step_seconds=step_seconds
            )
            results = parts.loop_function(batches, stop - step, observe, local_flags)
            if length.step_delay_milliseconds:
                results = _delayed(results, 1e-3 * length.step_delay_milliseconds)
        results = _within(results, timer.seconds)
        clock.add("input", float(results.input_seconds.sum()))
        counters.add(results)
        step += results.applied_steps
        # The inner loop stops early only at a step with a value that is not finite.
        if step < stop:
            raise DivergedError(step + 1, diagnose(results))
        # The median ignores a single slow step.
        step_seconds = float(np.median(results.step_seconds))
        call_length.learn(results.agreed.step_seconds)
        event = StepEvent(
            step=step,
            last_step=last_step,
            results=results,
            call_seconds=timer.seconds,
            observed=observe,
        )
        for when in callbacks:
            if when.is_due(event):
                when.callback(event)


def _until_due(
    callbacks: Sequence[When], step: int, last_step: int, most_steps: int
) -> tuple[int, SummaryLevel]:
    """Returns the last step of the next call, and the detail of its summaries."""
    # A call ends at the first step at which any callback is due.
    due = min(when.next_after(step, last_step) for when in callbacks)
    stop = min(due, last_step, step + most_steps)
    wanted = (w.observe for w in callbacks if w.next_after(step, last_step) == stop)
    return stop, max(wanted, default=SummaryLevel.NONE)


def _delayed(results: StepResults, seconds: float) -> StepResults:
    # One sleep for the whole call; the recorded duration of each step grows by its
    # part.
    time.sleep(seconds * results.applied_steps)
    return dataclasses.replace(results, step_seconds=results.step_seconds + seconds)


def _within(results: StepResults, seconds: float) -> StepResults:
    """Returns results whose times are no longer than their call, and not negative.

    The clock of steps is the machine's, which may be set while they run.
    """
    return dataclasses.replace(
        results,
        step_seconds=np.clip(results.step_seconds, 0, seconds),
        input_seconds=np.clip(results.input_seconds, 0, seconds),
    )
