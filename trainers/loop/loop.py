"""The outer loop: plain Python that advances the run and hands out reports.

The inner loop runs steps inside the runtime. Between two of its calls, and never
inside one, hooks write files, evaluate and print.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strategies.common.errors import DivergedError
from strategies.common.types import Agreed, Observe, RunSteps, StepResults
from trainers.loop.timing import Clock
from trainers.run_dir.train_state import Tally

_MOST_STEPS_PER_CALL = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What hooks learn after a call of the inner loop.

    Attributes:
      step: applied updates since the beginning of the run.
      last_step: where the run ends.
      results: of the steps of this call.
      call_seconds: wall time of the call, Python's part included.
    """

    step: int
    last_step: int
    results: StepResults
    call_seconds: float

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


Hook = Callable[[StepReport], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Every:
    """Runs a hook whenever the step is a multiple of a number, and at the end.

    Attributes:
      steps: the number; None for only at the end.
      hook: what to run.
      observe: how closely the step before the hook is looked at.
    """

    steps: int | None
    hook: Hook
    observe: Observe = Observe.NOT

    def next_after(self, step: int, last_step: int) -> int:
        """The first step after this one at which the hook is due."""
        if self.steps is None:
            return last_step
        return min(last_step, (step // self.steps + 1) * self.steps)

    def is_due(self, report: StepReport) -> bool:
        due = self.steps is not None and report.step % self.steps == 0
        return due or report.is_last


@dataclasses.dataclass(frozen=True, slots=True)
class At:
    """Runs a hook at certain steps, and at the end if it comes before the last of them.

    Attributes:
      steps: in ascending order.
      hook: what to run.
      observe: how closely the step before the hook is looked at.
    """

    steps: Sequence[int]
    hook: Hook
    observe: Observe = Observe.NOT

    def next_after(self, step: int, last_step: int) -> int:
        """The first step after this one at which the hook is due."""
        return min([last_step, *(due for due in self.steps if due > step)])

    def is_due(self, report: StepReport) -> bool:
        is_early = report.is_last and report.step < self.steps[-1]
        return report.step in self.steps or is_early


@dataclasses.dataclass(frozen=True, slots=True)
class Always:
    """Runs a hook after every call, however many steps it had."""

    hook: Hook
    observe: Observe = Observe.NOT

    def next_after(self, step: int, last_step: int) -> int:
        return last_step

    def is_due(self, report: StepReport) -> bool:
        return True


When = Every | At | Always


class CallLength:
    """How many steps the next call should run."""

    def __init__(self, steps_per_loop: int | None, target_seconds: float):
        """Takes a fixed number, or None to aim at a duration."""
        self._target_seconds = target_seconds
        self._fixed = steps_per_loop
        self._steps = steps_per_loop or 1

    @property
    def steps(self) -> int:
        return self._steps

    def learn(self, step_seconds: float) -> None:
        """Adapts to how long a step takes; zero if that is not known."""
        if self._fixed is None and step_seconds:
            wanted = int(self._target_seconds / step_seconds)
            self._steps = min(max(wanted, 1), _MOST_STEPS_PER_CALL)


def run_loop(
    run_steps: RunSteps,
    batches: Any,
    *,
    first_step: int,
    last_step: int,
    call_length: CallLength,
    hooks: Sequence[When],
    clock: Clock,
    tally: Tally,
    stop_requested: Callable[[], bool] = lambda: False,
    step_delay_seconds: float = 0.0,
    diagnose: Callable[[StepResults], str] = lambda results: "something diverged at",
) -> None:
    """Advances from one step to another.

    Args:
      run_steps: the inner loop.
      batches: what it reads, beginning with the batch of `first_step`.
      first_step: updates already applied.
      last_step: updates applied when this returns.
      call_length: decides how many steps a call has; a call also ends at the next
        step at which a hook is due.
      hooks: run in this order whenever they are due.
      clock: told how long training and its input took.
      tally: counts what was done, a step that diverged included.
      stop_requested: whether this process was asked to stop; all processes learn
        of it with the next step.
      step_delay_seconds: added to every step, and counted as part of it.
      diagnose: says of a step that was not applied what in it was not finite.

    Raises:
      DivergedError: a loss or gradient was not finite; that update was not applied.
    """
    step = first_step
    step_seconds = 0.0
    while step < last_step:
        stop, observe = _until_due(hooks, step, last_step, call_length.steps)
        with clock.measure("train") as timer:
            proposed = Agreed(
                stop_requested=float(stop_requested()), step_seconds=step_seconds
            )
            results = run_steps(batches, stop - step, observe, proposed).fetch()
            if step_delay_seconds:
                results = _delayed(results, step_delay_seconds)
        clock.add("input", float(results.input_seconds.sum()))
        tally.add(results)
        step += results.applied_steps
        if step < stop:
            raise DivergedError(step + 1, diagnose(results))
        step_seconds = float(np.median(results.step_seconds))
        call_length.learn(results.agreed.step_seconds)
        report = StepReport(
            step=step,
            last_step=last_step,
            results=results,
            call_seconds=timer.seconds,
        )
        for when in hooks:
            if when.is_due(report):
                when.hook(report)


def _until_due(
    hooks: Sequence[When], step: int, last_step: int, most_steps: int
) -> tuple[int, Observe]:
    """Where the next call ends, and how closely its last step is looked at."""
    due = min(when.next_after(step, last_step) for when in hooks)
    stop = min(due, last_step, step + most_steps)
    wanted = (w.observe for w in hooks if w.next_after(step, last_step) == stop)
    return stop, max(wanted, default=Observe.NOT)


def _delayed(results: StepResults, seconds: float) -> StepResults:
    time.sleep(seconds * results.applied_steps)
    return dataclasses.replace(results, step_seconds=results.step_seconds + seconds)
