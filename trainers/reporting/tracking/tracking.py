"""Delivery of a run's metrics to experiment trackers.

Each tracker has a thread and a queue, because a tracker may be a slow or unreachable
server, and importing its package takes a second. A failure causes one warning; what
could not be sent is left out there and stays in the run folder.
"""

from __future__ import annotations

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
from trainers.reporting.tracking.base import (
    TrackedRun,
    Tracker,
    figures_of,
    git_commit,
)
from trainers.run_dir.run_dir import RunDir

_SECONDS_AT_THE_END = 60.0
# Reports that wait for a tracker that does not answer; later ones are left out.
_MOST_WAITING = 20_000

_Report = Callable[[Tracker], object]


class Tracking:
    """Experiment trackers of a run; none by default."""

    def __init__(self, config: TrackingConfig, console: Console):
        """Starts no thread yet.

        Args:
          config: Names of the trackers.
          console: Output of the process.
        """
        self._senders = [_Sender(name, console) for name in config.trackers or ()]

    def begin(
        self, assembly: TrainingParts, folder: RunDir, versions: Mapping[str, str]
    ) -> None:
        """Starts the threads, which create the run's entries.

        Args:
          assembly: Parts of the run.
          folder: Folder of the run.
          versions: Versions of Python, TensorFlow, Keras and NumPy, by name.
        """
        if self._senders:
            run = _tracked_run(assembly, folder, versions)
            for sender in self._senders:
                sender.start(run)

    def log(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Queues scalars under their TensorBoard names.

        Args:
          split: Folder of TensorBoard, such as `train`.
          values: Values by tag.
          step: Number of applied updates.
        """
        finite = {f"{split}/{n}": v for n, v in values.items() if math.isfinite(v)}
        seconds = time.time()
        self._add(lambda tracker: tracker.log(finite, step, seconds))

    def end(self, result: Mapping[str, Any]) -> None:
        """Queues the result of the run.

        Args:
          result: Content of result.json.
        """
        status, figures = str(result["status"]), figures_of(result)
        self._add(lambda tracker: tracker.end(status, figures))

    def wait(self) -> None:
        """Waits until all reports are delivered, or for a minute."""
        # One deadline for all trackers together.
        deadline = time.monotonic() + _SECONDS_AT_THE_END
        for sender in self._senders:
            sender.wait(deadline)

    def _add(self, report: _Report) -> None:
        for sender in self._senders:
            sender.add(report)


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
        self._queue: queue.Queue[_Report | None] = queue.Queue(_MOST_WAITING)
        self._tracker: Tracker | None = None
        self._thread: threading.Thread | None = None

    def start(self, run: TrackedRun) -> None:
        self._thread = threading.Thread(target=self._send_all, args=(run,), daemon=True)
        self._thread.start()

    def add(self, report: _Report | None) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(report)

    def wait(self, deadline: float) -> None:
        if self._thread is None:
            return
        self.add(None)
        self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            self._console.warn(
                f"--trackers={self._name} has not taken everything within "
                f"{_SECONDS_AT_THE_END:.0f} s; the run folder has all of it."
            )

    def _send_all(self, run: TrackedRun) -> None:
        # The first report does nothing: it creates the entry at once.
        report: _Report | None = _nothing
        while report is not None:
            self._send(report, run)
            report = self._queue.get()

    def _send(self, report: _Report, run: TrackedRun) -> None:
        what = f"--trackers={self._name} does not take a report"
        if self._write_errors.attempt(what, lambda: report(self._entry(run))):
            self._write_errors.end(f"tracker   {self._name}")

    def _entry(self, run: TrackedRun) -> Tracker:
        """Returns the run's entry; creates it unless an earlier report has done so."""
        if self._tracker is None:
            tracker = _make_tracker(self._name)
            self._console.item("tracker", f"{self._name}: {tracker.begin(run)}")
            self._tracker = tracker
        return self._tracker


def _nothing(tracker: Tracker) -> None:
    del tracker


def _make_tracker(name: str) -> Tracker:
    # Imported in the tracker's thread, so that the import delays nothing.
    if name == "mlflow":
        from trainers.reporting.tracking.mlflow import MLflow

        return MLflow()
    from trainers.reporting.tracking.wandb import WeightsAndBiases

    return WeightsAndBiases()


def _tracked_run(
    assembly: TrainingParts, folder: RunDir, versions: Mapping[str, str]
) -> TrackedRun:
    config = assembly.config
    tags = {
        "strategy": assembly.strategy.name,
        "model": config.model.name,
        "dataset": config.data_name,
        "num_replicas": str(assembly.strategy.num_replicas),
        **versions,
    }
    commit = git_commit()
    return TrackedRun(
        name=folder.name,
        experiment=config.tracking.tracker_experiment,
        group=config.tracking.tracker_group,
        settings=config.replace(run_dir=str(folder.path)).to_dict(),
        tags=tags if commit is None else {**tags, "git_commit": commit},
        folder=folder.trackers,
    )
