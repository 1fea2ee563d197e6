"""The search of a comparison: short runs of every arm, each in a separate process."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.common.text import as_argument
from strategies.processes.starter import ProcessStarter
from trainers.config.config import Config
from trainers.config.groups import option
from trainers.experiments.arms import Arm
from trainers.experiments.run_record import Run, read_run
from trainers.experiments.runner import measure_run
from trainers.experiments.tune.halving import Trial, halve, value_for_all
from trainers.experiments.tune.tuning import Tuning

# From the value of the setting and the length of a run, in updates.
Runs = Mapping[tuple[Any, int], Run]


class SearchFailedError(Exception):
    """Error for an arm that has no value left."""

    def __init__(self, message: str, exit_code: ExitCode):
        super().__init__(message)
        self.exit_code = exit_code


class _Stopped(Exception):
    """Request to stop during a run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Result of the search of one arm.

    Attributes:
      arm: Arm with the chosen value.
      given: Value before the search.
      best: Trial with the lowest loss.
      chosen: Trial of the chosen value: the best, or another as good for all arms.
      trials: Trials of all values.
      given_loss: Loss with the given value after the longest runs of the search; None
        if that run did not complete.
      runs: All runs of the search.
    """

    arm: Arm
    given: Any
    best: Trial
    chosen: Trial
    trials: Sequence[Trial]
    given_loss: float | None
    runs: Runs

    @property
    def steps(self) -> int:
        """Steps of all runs, in updates, the run of the given value included."""
        return sum(steps for _, steps in self.runs)


class Search:
    """Executor of the runs of a search that have not finished yet."""

    def __init__(
        self,
        path: pathlib.Path,
        tuning: Tuning,
        starter: ProcessStarter,
        stop_requested: Callable[[], bool],
        console: Console,
    ):
        """Writes nothing yet.

        Args:
          path: Folder of the comparison.
          tuning: What to search.
          starter: What starts the process of each run.
          stop_requested: Function that returns whether to stop.
          console: Output of the process.
        """
        self._path = path
        self._tuning = tuning
        self._starter = starter
        self._stop_requested = stop_requested
        self._console = console
        self._runs: dict[tuple[str, Any, int], Run] = {}
        self._num_expected = 0
        self._seconds: list[float] = []
        self._words = ""

    def run(self, arms: Sequence[Arm]) -> list[Found] | None:
        """Searches every arm; the same runs lead to the same values.

        Returns:
          The results in the order of the arms; None if asked to stop.

        Raises:
          SearchFailedError: No value of an arm completed its runs.
        """
        # With the run of the given value, which may be one of the others.
        of_an_arm = sum(rung.num_values for rung in self._tuning.rungs) + 1
        self._num_expected = len(arms) * of_an_arm
        try:
            with self._console.live(lambda: self._words):
                found = [self._search(arm) for arm in arms]
        except _Stopped:
            return None
        last = self._tuning.rungs[-1].steps
        value = value_for_all([each.trials for each in found], last)
        return found if value is None else [self._with(e, value) for e in found]

    def _search(self, arm: Arm) -> Found:
        tuning = self._tuning
        given = arm.config.to_dict()[tuning.setting]
        trials, best = halve(
            tuning.values,
            tuning.rungs,
            lambda value, steps: loss_of(self._run(arm, value, steps)),
            lambda value: tuning.distance(value, given),
        )
        if best is None:
            raise self._failure(arm, trials)
        # What the arm would have been without the search, at the same length.
        given_loss = loss_of(self._run(arm, given, tuning.rungs[-1].steps))
        found = Found(
            arm=arm,
            given=given,
            best=best,
            chosen=best,
            trials=trials,
            given_loss=given_loss,
            runs={key[1:]: r for key, r in self._runs.items() if key[0] == arm.name},
        )
        return self._with(found, best.value)

    def _with(self, found: Found, value: float) -> Found:
        """Returns the result with another value chosen."""
        config = self._tuning.with_value(found.arm.config, value)
        return dataclasses.replace(
            found,
            arm=Arm(name=found.arm.name, config=config),
            chosen=next(t for t in found.trials if t.value == value),
        )

    def _run(self, arm: Arm, value: Any, steps: int) -> Run:
        """Returns the run of a value; it is started if it has not ended before."""
        key = (arm.name, value, steps)
        place = f"{steps}-steps/{as_argument(value)}"
        path = self._path / "tuning" / arm.name / place
        log = self._path / "logs" / f"{arm.name}-{place.replace('/', '-')}.log"
        began = time.monotonic()
        run = read_run(path, arm=arm.name, seed=self._tuning.seed, log=log)
        # A failed run is tried again, but not after the decision: the runs of the
        # comparison have the values that it led to.
        is_done = run.is_final or (self._path / "runs").exists()
        if not is_done:
            self._words = f"running   {self._name_of(arm, value, steps)}"
            shutil.rmtree(path, ignore_errors=True)
            config = self._config(arm, value, steps).replace(run_dir=str(path))
            if measure_run(config, log, self._stop_requested, self._starter) is None:
                raise _Stopped
            run = read_run(path, arm=arm.name, seed=self._tuning.seed, log=log)
        is_new = key not in self._runs
        self._runs[key] = run
        if is_new and not is_done:
            self._report(self._name_of(arm, value, steps), run, began)
        return run

    def _config(self, arm: Arm, value: Any, steps: int) -> Config:
        """Returns the configuration of a run, without its folder.

        The learning rate's schedule and its warm-up are shortened with the run.
        """
        config = self._tuning.with_value(arm.config, value)
        warmup_steps = config.optimizer.warmup_steps * steps // self._tuning.train_steps
        return config.replace(
            seed=self._tuning.seed,
            train_steps=steps,
            warmup_steps=warmup_steps,
            **dict.fromkeys(("export", "profile_steps", "tensorboard_dir", "trackers")),
        )

    def _name_of(self, arm: Arm, value: Any, steps: int) -> str:
        name = option(self._tuning.setting)
        return f"{arm.name}, {name}={as_argument(value)}, {steps} steps"

    def _report(self, name: str, run: Run, began: float) -> None:
        self._seconds.append(time.monotonic() - began)
        left = self._num_expected - len(self._runs)
        seconds = left * sum(self._seconds) / len(self._seconds)
        minutes, seconds = divmod(round(seconds), 60)
        loss = loss_of(run)
        words = f"{run.status}: {run.reason}" if loss is None else f"loss {loss:.4f}"
        self._console.narrate(
            f"tune {len(self._runs):>3}/{self._num_expected} | {name} | {words} | "
            f"{self._seconds[-1]:.0f} s | {minutes}:{seconds:02} left"
        )

    def _failure(self, arm: Arm, trials: Sequence[Trial]) -> SearchFailedError:
        name = option(self._tuning.setting)
        runs = [run for key, run in self._runs.items() if key[0] == arm.name]
        steps = max(steps for trial in trials for steps in trial.losses)
        last = [t for t in trials if steps in t.losses]
        tried = f"{len(last)} values of {name} in {steps} steps"
        if all(run.status != "failed" for run in runs):
            return SearchFailedError(
                f"{arm.name} diverged with all {tried}: choose other bounds of --tune, "
                "and another --run_dir.",
                ExitCode.DIVERGED,
            )
        reason = next(run.reason for run in runs if run.status == "failed")
        return SearchFailedError(
            f"no run of {arm.name} completed, with {tried}: {reason}; correct that, "
            "and give the same flags again.",
            ExitCode.BUG,
        )


def loss_of(run: Run) -> float | None:
    """Returns a run's final loss, on held-out examples if there are any.

    It is None unless the run completed.
    """
    figures = run.figures(None)
    loss = figures["eval_loss"]
    return figures["train_loss"] if loss is None else loss
