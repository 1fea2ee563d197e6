"""Delivery to experiment trackers in separate threads.

A tracker may be a slow or unreachable server. The run puts its reports into a queue and
continues. Failed deliveries cause one warning and are retried.
"""

from __future__ import annotations

import collections
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from strategies.common.console import Console
from strategies.common.write_errors import WriteErrorReporter
from trainers.reporting.tracking.base import (
    MakeTracker,
    TrackedRun,
    Tracker,
    figures_of,
)

_SECONDS_UNTIL_TRIED_AGAIN = 30.0
_SECONDS_AT_THE_END = 60.0
# Limit of undelivered points; the oldest are dropped if a server is unreachable for
# long.
_MOST_ROWS = 20_000


class Trackers:
    """Trackers of a run, each with a thread."""

    def __init__(self, names: Sequence[str], console: Console):
        self._senders = [_Sender(name, _MAKERS[name], console) for name in names]

    def begin(self, run: Callable[[], TrackedRun]) -> None:
        """Starts the threads of the trackers.

        Args:
          run: Function that describes the run; called only if there are trackers.
        """
        if self._senders:
            described = run()
            for sender in self._senders:
                sender.start(described)

    def log(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Queues scalars under their TensorBoard names.

        Args:
          split: Folder of TensorBoard, such as `train`.
          values: Values by tag.
          step: Number of applied updates.
        """
        finite = {f"{split}/{n}": v for n, v in values.items() if math.isfinite(v)}
        for sender in self._senders:
            sender.add(_Row(finite, step, time.time()))

    def end(self, result: Mapping[str, Any]) -> None:
        """Queues the result of the run.

        Args:
          result: Content of result.json.
        """
        for sender in self._senders:
            sender.add(_End(str(result["status"]), figures_of(result)))

    def wait(self) -> None:
        """Waits until all reports are delivered, or for a minute."""
        # One deadline for all trackers together.
        deadline = time.monotonic() + _SECONDS_AT_THE_END
        for sender in self._senders:
            sender.wait(deadline)


class _Row(NamedTuple):
    """Arguments of `Tracker.log`."""

    values: Mapping[str, float]
    step: int
    seconds: float


class _End(NamedTuple):
    """Arguments of `Tracker.end`."""

    status: str
    figures: Mapping[str, float]


class _Sender:
    """Delivery to one tracker, in order."""

    def __init__(self, name: str, make: MakeTracker, console: Console):
        self._name = name
        self._make = make
        self._console = console
        self._spell = WriteErrorReporter(
            console,
            "training goes on, and it is tried again",
            "can be reached again",
            describe_error=_words,
        )
        self._arrivals: queue.SimpleQueue[_Row | _End] = queue.SimpleQueue()
        # A full deque drops its oldest entry.
        self._rows: collections.deque[_Row] = collections.deque(maxlen=_MOST_ROWS)
        self._tracker: Tracker | None = None
        self._thread: threading.Thread | None = None

    def start(self, run: TrackedRun) -> None:
        self._thread = threading.Thread(target=self._serve, args=(run,), daemon=True)
        self._thread.start()

    def add(self, arrival: _Row | _End) -> None:
        self._arrivals.put(arrival)

    def wait(self, deadline: float) -> None:
        if self._thread is None:
            return
        self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            self._console.warn(
                f"--trackers={self._name} has not taken everything within "
                f"{_SECONDS_AT_THE_END:.0f} s; the run's own folder has all of it."
            )

    def _serve(self, run: TrackedRun) -> None:
        end: _End | None = None
        next_try = 0.0
        while end is None:
            # At once if there is nothing queued, which creates the entry; otherwise not
            # before the pause after a failure is over.
            if not self._rows or time.monotonic() >= next_try:
                delivered = self._attempt(lambda: self._deliver(run))
                pause = 0.0 if delivered else _SECONDS_UNTIL_TRIED_AGAIN
                next_try = time.monotonic() + pause
            end = self._receive()
        ending = end
        self._attempt(lambda: self._deliver(run).end(*ending))

    def _receive(self) -> _End | None:
        """Waits for the next report; returns it only if it is the end."""
        arrival = self._arrivals.get()
        if isinstance(arrival, _End):
            return arrival
        self._rows.append(arrival)
        return None

    def _deliver(self, run: TrackedRun) -> Tracker:
        if self._tracker is None:
            tracker = self._make()
            where = tracker.begin(run)
            self._tracker = tracker
            self._console.say(f"tracker   {self._name}: {where}")
        while self._rows:
            self._tracker.log(*self._rows[0])
            # Removed only after the delivery: a failed row stays first and is sent
            # again.
            self._rows.popleft()
        return self._tracker

    def _attempt(self, deliver: Callable[[], object]) -> bool:
        what = f"--trackers={self._name} cannot be reached"
        if not self._spell.attempt(what, deliver):
            return False
        self._spell.end(f"tracker   {self._name}")
        return True


def _words(error: Exception) -> str:
    """Returns an error on one line.

    Packages raise various classes, none of which stops a run.
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _mlflow() -> Tracker:
    # Imported on demand: MLflow's import takes a second.
    from trainers.reporting.tracking.mlflow import MLflow

    return MLflow()


def _wandb() -> Tracker:
    from trainers.reporting.tracking.wandb import WeightsAndBiases

    return WeightsAndBiases()


_MAKERS: Mapping[str, MakeTracker] = {"mlflow": _mlflow, "wandb": _wandb}
