"""Keeps an eye on workers whose work others can take over, and on servers.

The coordinator of parameter servers runs the steps of a lost worker elsewhere and
logs hundreds of lines a second about it, and with no worker left it waits for ever
(TensorFlow 2.21). Here the loss is one line, and the loss of too many is an error.
For a task that stands still it waits for ever, too, until it is disconnected.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from strategies.cluster import Cluster
from strategies.disconnection import disconnect
from strategies.rendezvous import REMEDY, PeerLostError, Presence, presence

_POLL_SECONDS = 1.0


@contextlib.contextmanager
def workers_attended(
    cluster: Cluster,
    num_required: int,
    warn: Callable[[str], None],
    patience_seconds: float,
    return_seconds: float,
) -> Iterator[None]:
    """Warns of workers that come and go, while the main thread runs a block.

    Args:
      cluster: whose workers.
      num_required: how many of them steps cannot do without.
      warn: told of each in a sentence, from another thread.
      patience_seconds: Time that a task may be silent.
      return_seconds: Time that there may be fewer workers than required.

    Raises:
      PeerLostError: there were fewer for that long, or a server was silent.
    """
    lost: list[PeerLostError] = []
    ended = threading.Event()

    def raise_in_main_thread(number: int, frame: FrameType | None) -> None:
        raise lost[0]

    tasks = {**_tasks_of(cluster, "worker"), **_tasks_of(cluster, "ps")}
    attendance = _Attendance(tasks, patience_seconds)

    def attend() -> None:
        error = _until_too_few_are_left(
            cluster, attendance, num_required, warn, return_seconds, ended
        )
        if error is None:
            return
        lost.append(error)
        # The main thread waits for a result that will not come. A handler of a
        # signal is what Python runs in the middle of that.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        # The end of the run asks for what the lost tasks held, on new connections,
        # and gRPC waits 20 s for an answer to each.
        while not ended.wait(_POLL_SECONDS):
            attendance.missing()

    previous = signal.signal(signal.SIGUSR1, raise_in_main_thread)
    thread = threading.Thread(target=attend, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, previous)


def _until_too_few_are_left(
    cluster: Cluster,
    attendance: _Attendance,
    num_required: int,
    warn: Callable[[str], None],
    return_seconds: float,
    ended: threading.Event,
) -> PeerLostError | None:
    workers, servers = (_tasks_of(cluster, job) for job in ("worker", "ps"))
    gone: set[str] = set()
    enough_at = time.monotonic()
    while not ended.wait(_POLL_SECONDS):
        missing = attendance.missing()
        there = workers.keys() - missing.keys()
        enough = len(there) >= num_required
        others = "; the others go on" if enough else ""
        for task in sorted(workers.keys() - there - gone):
            warn(f"{task} at {workers[task]} {missing[task]}{others}.")
        for task in sorted(gone & there):
            warn(f"{task} at {workers[task]} is back.")
        gone = workers.keys() - there
        for task in sorted(servers.keys() & missing.keys()):
            return PeerLostError(f"{task} at {servers[task]} {missing[task]}: {REMEDY}")
        if enough:
            enough_at = time.monotonic()
        elif time.monotonic() - enough_at > return_seconds:
            names = ", ".join(f"{task} at {workers[task]}" for task in sorted(gone))
            needed = f"{len(there)} of {num_required} workers needed are left"
            return PeerLostError(f"{needed}, {names} lost: {REMEDY}")
    return None


class _Attendance:
    """Who is missing, of some tasks."""

    def __init__(self, tasks: Mapping[str, str], patience_seconds: float):
        """Begins as if all of them had just been heard of.

        Args:
          tasks: host:port by name.
          patience_seconds: how long one of them may be silent.
        """
        self._tasks = tasks
        self._patience_seconds = patience_seconds
        self._heard_at = dict.fromkeys(tasks, time.monotonic())
        self._missing: dict[str, str] = {}

    def missing(self) -> Mapping[str, str]:
        """By the name of the task, what is wrong with it, to be put behind the name.

        One that is silent for too long is disconnected, however often it has to be.
        One that was missing is so until it talks: silence is no return.
        """
        # A machine that is off takes a second each.
        with ThreadPoolExecutor(max_workers=32) as pool:
            found = list(pool.map(presence, self._tasks.values()))
        now = time.monotonic()
        for (task, address), present in zip(self._tasks.items(), found, strict=True):
            if present is not Presence.SILENT:
                self._heard_at[task] = now
            if present is Presence.THERE:
                self._missing.pop(task, None)
            elif present is Presence.GONE:
                self._missing[task] = "was lost"
            elif now - self._heard_at[task] > self._patience_seconds:
                self._missing.setdefault(task, "does not answer")
                disconnect(address)
        return dict(self._missing)


def _tasks_of(cluster: Cluster, job: str) -> Mapping[str, str]:
    tasks = cluster.members().items()
    return {task: address for task, address in tasks if task.startswith(f"{job}-")}
