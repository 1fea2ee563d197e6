"""Delivery of a run's metrics to experiment trackers.

Each tracker has a thread and a queue, because a tracker may be a slow or unreachable
server, and importing its package takes a second. A failure causes one warning; what
could not be sent is left out there and stays in the run folder.
"""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from strategies.common.console import Console
from strategies.common.write_errors import WriteErrorReporter
from trainers.config.tracking import TrackingConfig
from trainers.loop.parts import TrainingParts
from trainers.reporting.tracking.base import TrackedRun, Tracker, figures_of
from trainers.run_dir.run_dir import RunDir

_SECONDS_AT_THE_END = 60.0
# Reports that wait for a tracker that does not answer; later ones are left out.
_MOST_WAITING = 20_000

_Report = Callable[[Tracker], object]
# A run begins or continues its entry; None is the last of a queue.
_Queued = TrackedRun | _Report | None


class Tracking:
    """Experiment trackers of a run; none by default."""

    def __init__(self, config: TrackingConfig, console: Console):
        """Starts no thread yet."""
        self._senders = [_Sender(name, console) for name in config.trackers or ()]

    def begin(
        self,
        parts: TrainingParts,
        folder: RunDir,
        versions: Mapping[str, str],
        commit: str | None,
    ) -> None:
        """Queues the start of the run's entries.

        A program that calls `fit` again continues the entries that the end of its
        `fit` before has closed.
        """
        if self._senders:
            self._add(_tracked_run(parts, folder, versions, commit))

    def log(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Queues values by tag under their TensorBoard names; `split` is the folder."""
        finite = {f"{split}/{n}": v for n, v in values.items() if math.isfinite(v)}
        seconds = time.time()
        self._add(lambda tracker: tracker.log(finite, step, seconds))

    def end(self, result: Mapping[str, Any]) -> None:
        """Queues the result of the run."""
        status, figures = str(result["status"]), figures_of(result)
        self._add(lambda tracker: tracker.end(status, figures))

    def wait(self) -> None:
        """Waits until all reports are delivered, or for a minute."""
        # One deadline for all trackers together.
        deadline = time.monotonic() + _SECONDS_AT_THE_END
        for sender in self._senders:
            sender.wait(deadline)

    def _add(self, queued: TrackedRun | _Report) -> None:
        for sender in self._senders:
            sender.add(queued)


class _Sender:
    """Delivery to one tracker, in order."""

    def __init__(self, name: str, console: Console):
        self._name = name
        self._console = console
        self._write_errors = WriteErrorReporter(
            console,
            "training goes on, and the run folder has everything",
            "takes reports again",
            # Packages raise errors of many classes, none of which stops a run.
            lambda error: " ".join(f"{type(error).__name__}: {error}".split())[:200],
        )
        self._queue: queue.Queue[_Queued] = queue.Queue(_MOST_WAITING)
        self._run: TrackedRun | None = None
        self._tracker: Tracker | None = None
        self._thread = threading.Thread(target=self._send_all, daemon=True)

    def add(self, queued: _Queued) -> None:
        if isinstance(queued, TrackedRun) and not self._thread.is_alive():
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(queued)

    def wait(self, deadline: float) -> None:
        if not self._thread.is_alive():
            return
        self.add(None)
        self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            self._console.warn(
                f"--trackers={self._name} has not taken everything within "
                f"{_SECONDS_AT_THE_END:.0f} s; the run folder has all of it."
            )

    def _send_all(self) -> None:
        while (queued := self._queue.get()) is not None:
            if isinstance(queued, TrackedRun):
                self._run, self._tracker = queued, None
            # A run is no report: its entry is created at once.
            self._send(queued if callable(queued) else lambda tracker: None)

    def _send(self, report: _Report) -> None:
        what = f"--trackers={self._name} does not take a report"
        if self._write_errors.attempt(what, lambda: report(self._entry())):
            self._write_errors.end(f"tracker   {self._name}")

    def _entry(self) -> Tracker:
        """Returns the run's entry; creates it unless an earlier report has done so."""
        if self._tracker is None:
            if self._run is None:
                raise RuntimeError("a run comes before its reports")
            tracker = _make_tracker(self._name)
            self._console.item("tracker", f"{self._name}: {tracker.begin(self._run)}")
            self._tracker = tracker
        return self._tracker


def _make_tracker(name: str) -> Tracker:
    # Imported in the tracker's thread, so that the import delays nothing.
    if name == "mlflow":
        from trainers.reporting.tracking.mlflow import MLflow

        return MLflow()
    from trainers.reporting.tracking.wandb import WeightsAndBiases

    return WeightsAndBiases()


def _tracked_run(
    parts: TrainingParts,
    folder: RunDir,
    versions: Mapping[str, str],
    commit: str | None,
) -> TrackedRun:
    config = parts.config
    tags = {
        "strategy": parts.strategy.name,
        "model": config.model.name,
        "dataset": config.data_name,
        "num_replicas": str(parts.strategy.num_replicas),
        **versions,
    }
    if commit is not None:
        # Without the suffix `+changes`.
        tags["git_commit"] = commit.partition("+")[0]
    return TrackedRun(
        name=folder.name,
        experiment=config.tracking.tracker_experiment,
        group=config.tracking.tracker_group,
        settings=config.replace(run_dir=str(folder.path)).to_dict(),
        tags=tags,
        folder=folder.trackers,
    )
