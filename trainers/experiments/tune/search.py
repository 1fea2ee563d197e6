"""The search of a comparison: short runs of every arm, each in a separate process."""

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.text import as_argument
from strategies.processes.starter import ProcessStarter
from trainers.config.config import Config
from trainers.config.groups import option
from trainers.experiments.arms import Arm
from trainers.experiments.command import measure_run
from trainers.experiments.run_record import Run, read_run
from trainers.experiments.tune.halving import Trial, halve, value_for_all, with_given
from trainers.experiments.tune.tuning import Tuning
from trainers.fault_tolerance.preemption import PreemptionSignals

# What the short runs leave out. The training does not depend on it.
_LEFT_OUT = ("export", "profile_steps", "tensorboard_dir", "trackers")


class SearchFailedError(Exception):
    """Error for an arm that has no value left."""

    def __init__(self, message: str, exit_code: ExitCode):
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TunedArm:
    """Result of the search of one arm.

    Attributes:
      arm: Arm with the chosen value.
      given: Value before the search; None for none, or that of a program.
      given_loss: Loss with it after the longest runs of the search; None if that run
        did not complete.
      best: Trial with the lowest loss.
      chosen: Trial of the chosen value: the best, or another as good for all arms.
      trials: Trials of all values.
      runs: All runs by value and length, in updates.
      search_steps: Length of all runs in updates, without a further run of the given
        value.
    """

    arm: Arm
    given: Any
    given_loss: float | None
    best: Trial
    chosen: Trial
    trials: Sequence[Trial]
    runs: Mapping[tuple[Any, int], Run]
    search_steps: int


@dataclasses.dataclass(slots=True)
class Search:
    """Executor of the runs of a search that have not finished yet.

    `path` is the folder of the comparison.
    """

    path: pathlib.Path
    tuning: Tuning
    starter: ProcessStarter
    signals: PreemptionSignals
    console: Console
    _num_expected: int = dataclasses.field(default=0, init=False)
    _num_ended: int = dataclasses.field(default=0, init=False)

    def run(self, arms: Sequence[Arm]) -> list[TunedArm]:
        """Searches every arm in turn; the same runs lead to the same values.

        Raises:
          StopRequested: A signal arrived; the current run has ended.
          SearchFailedError: No value of an arm completed its runs.
        """
        rungs = self.tuning.rungs
        # With the run of the given value, which may be one of the others.
        self._num_expected = len(arms) * (sum(rung.num_values for rung in rungs) + 1)
        found = [self._search(arm) for arm in arms]
        value = value_for_all([each.trials for each in found], rungs[-1].steps)
        # Without such a value each arm keeps its best.
        return found if value is None else [self._with(e, value) for e in found]

    def _search(self, arm: Arm) -> TunedArm:
        tuning = self.tuning
        runs: dict[tuple[Any, int], Run] = {}

        def measure(value: Any, steps: int) -> float | None:
            if (value, steps) not in runs:
                runs[value, steps] = self._run(arm, value, steps)
                _check_evaluated(runs[value, steps], f"{arm.name} of {steps} steps")
            return loss_of(runs[value, steps])

        given = tuning.given(arm.config)
        trials, best = halve(
            tuning.values, tuning.rungs, measure, lambda v: tuning.distance(v, given)
        )
        search_steps = sum(steps for _, steps in runs)
        # The arm without the search, at the same length.
        steps = tuning.rungs[-1].steps
        competes = tuning.allows(given)
        given_loss = measure(given, steps) if best is not None or competes else None
        if competes:
            trials, best = with_given(trials, best, given, steps, given_loss)
        if best is None:
            raise self._failure(arm, list(runs.values()))
        # Which value all arms share is known after the last of them.
        found = TunedArm(
            arm=arm,
            given=given,
            given_loss=given_loss,
            best=best,
            chosen=best,
            trials=trials,
            runs=runs,
            search_steps=search_steps,
        )
        return self._with(found, best.value)

    def _with(self, found: TunedArm, value: float) -> TunedArm:
        """Returns the result with another value chosen."""
        config = self.tuning.with_value(found.arm.config, value)
        return dataclasses.replace(
            found,
            arm=dataclasses.replace(found.arm, config=config),
            chosen=next(t for t in found.trials if t.value == value),
        )

    def _run(self, arm: Arm, value: Any, steps: int) -> Run:
        """Returns the run of a value; it is started if it has not ended before."""
        place = f"{steps}-steps/{as_argument(value)}"
        path = self.path / "tuning" / arm.name / place
        log = self.path / "logs" / f"{arm.name}-{place.replace('/', '-')}.log"
        flag = option(self.tuning.setting)
        words = f"without {flag}" if value is None else f"{flag}={value}"
        name = f"{arm.name}, {words}, {steps} steps"
        self._num_ended += 1
        run = read_run(path, arm=arm.name, seed=self.tuning.seed, log=log)
        # A failed run is tried again, but not after the decision: the runs of the
        # comparison have the values that it led to.
        is_decided = (self.path / "runs").exists()
        if run.is_final or (is_decided and run.measured):
            return run
        if is_decided:
            raise UsageError(
                f"--run_dir={self.path} has lost {path}, on which its values depend: "
                "restore it from a copy, or choose another folder."
            )
        # What an interrupted run left.
        shutil.rmtree(path, ignore_errors=True)
        config = self._config(arm, value, steps).replace(run_dir=str(path))
        with self.console.live(lambda: f"running   {name}"):
            measure_run(config, log, self.signals, self.starter)
        run = read_run(path, arm=arm.name, seed=self.tuning.seed, log=log)
        reason = run.reason or "its loss of held-out examples is not finite"
        loss = loss_of(run)
        outcome = f"{run.status}: {reason}" if loss is None else f"loss {loss:.4f}"
        self.console.narrate(
            f"tune {self._num_ended:>3}/{self._num_expected} | {name} | {outcome}"
        )
        return run

    def _config(self, arm: Arm, value: Any, steps: int) -> Config:
        """Returns the configuration of a run, without its folder."""
        config = self.tuning.with_value(arm.config, value)
        # As schedules are, warm-up is shortened with the run.
        warmup_steps = config.optimizer.warmup_steps * steps // self.tuning.train_steps
        return config.replace(
            seed=self.tuning.seed,
            train_steps=steps,
            warmup_steps=warmup_steps,
            **dict.fromkeys(_LEFT_OUT),
        )

    def _failure(self, arm: Arm, runs: Sequence[Run]) -> SearchFailedError:
        failed = [run for run in runs if not run.is_final]
        if failed:
            words = f"no run of {arm.name} completed in the search: {failed[0].reason}"
            return SearchFailedError(words, ExitCode.BUG)
        return SearchFailedError(
            f"{arm.name} diverged with all values of {option(self.tuning.setting)} "
            "that were left: choose other bounds of --tune, and another --run_dir.",
            ExitCode.DIVERGED,
        )


def _check_evaluated(run: Run, name: str) -> None:
    """Checks that a run has the loss by which values are chosen.

    Raises:
      UsageError: It has completed without an evaluation of its held-out examples.
    """
    # Lines of training have the times of steps.
    has_evaluated = any("step_milliseconds" not in row for row in run.metrics)
    if run.is_completed and run.result.get("eval_examples") and not has_evaluated:
        raise UsageError(
            f"--tune compares losses of held-out examples, and a run of {name} has "
            "completed without an evaluation: leave out "
            "--set=report.final_evaluation=false, or give a program more --train_steps "
            "or a smaller validation_freq, and another --run_dir."
        )


def loss_of(run: Run) -> float | None:
    """Returns a run's final loss, on held-out examples if there are any.

    It is None if the run did not complete, or if the loss is not finite.
    """
    has_held_out = bool(run.result.get("eval_examples"))
    return run.figures()["eval_loss" if has_held_out else "train_loss"]
