"""Runs a command, and measures from outside what the command cannot see itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from strategies.launched_task import LAUNCHER_PID
from trainers.files import write_json

FILE_NAME = "measured.json"

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_SAMPLES = 0.2
# For the step at hand and a checkpoint. Nothing is lost if it is killed before that: an
# interrupted run is begun anew.
_SECONDS_TO_STOP = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one command took.

    Attributes:
      exit_code: of the command; negative: the signal that ended it.
      wall_seconds: from its start to its end, loading TensorFlow included.
      peak_memory_mib: the most that all its processes held together.
      loopback_mib: what went over the machine's loopback interface meanwhile, start
        and end of the cluster and other programs included; None if not counted.
      other_busy_cores: how many cores other programs kept busy on average. They
        slow a run down, and not every run alike.
    """

    exit_code: int
    wall_seconds: float
    peak_memory_mib: float
    loopback_mib: float | None
    other_busy_cores: float

    def write(self, folder: pathlib.Path) -> None:
        write_json(folder / FILE_NAME, dataclasses.asdict(self))


def read_measured(folder: pathlib.Path) -> dict[str, Any]:
    """What `Measured.write` left; nothing if it is absent or damaged."""
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def measure(
    command: Sequence[str], log: pathlib.Path, stop_requested: Callable[[], bool]
) -> Measured | None:
    """Runs a command to its end, or ends it if asked to stop; then returns None.

    It is in a session of its own, so that Ctrl-C reaches it through this process
    alone, and it ends with this process, however that ends.
    """
    environment = {**os.environ, LAUNCHER_PID: str(os.getpid())}
    with log.open("w", encoding="utf-8") as output:
        loopback = _loopback_bytes()
        others = _others_cpu_seconds()
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            peak = _watch(process, stop_requested)
        finally:
            _end(process)
    wall_seconds = time.monotonic() - start
    if stop_requested():
        return None
    sent = _loopback_bytes()
    others_seconds = max(_others_cpu_seconds() - others, 0.0)
    return Measured(
        exit_code=process.returncode,
        wall_seconds=wall_seconds,
        peak_memory_mib=round(peak / 2**20, 1),
        loopback_mib=None
        if sent is None or loopback is None
        else round((sent - loopback) / 2**20, 3),
        other_busy_cores=round(others_seconds / wall_seconds, 3),
    )


def _watch(process: subprocess.Popen, stop_requested: Callable[[], bool]) -> int:
    """Waits for the end, and returns the most bytes of memory that were held."""
    tree = psutil.Process(process.pid)
    peak = 0
    next_sample = time.monotonic()
    while process.poll() is None and not stop_requested():
        if time.monotonic() >= next_sample:
            peak = max(peak, _memory_bytes(tree))
            next_sample = time.monotonic() + _SECONDS_BETWEEN_SAMPLES
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return peak


def _memory_bytes(process: psutil.Process) -> int:
    """Of a process and its descendants, what they share counted once.

    What is private to each is added up; of the shared pages, nearly all TensorFlow's
    own code, the largest number is added. The exact share of each page (PSS) takes
    13 ms to read of a process that has loaded TensorFlow, during which it is held
    up; this takes 0.02 ms.
    """
    private = shared = 0
    with contextlib.suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = each.memory_info()
                # Not every system tells shared pages apart.
                shared_here = getattr(memory, "shared", 0)
                private += memory.rss - shared_here
                shared = max(shared, shared_here)
    return private + shared


def _loopback_bytes() -> int | None:
    interface = psutil.net_io_counters(pernic=True).get("lo")
    return None if interface is None else interface.bytes_sent


def _others_cpu_seconds() -> float:
    """Processor time that neither this process nor what it ran has used."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    # Guests are counted as users already.
    busy -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    own = sum(sum(resource.getrusage(who)[:2]) for who in _OWN)
    return busy - own


_OWN = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
    if process.poll() is None:
        process.kill()
    process.wait()
