"""Commands in separate processes, and measurements of them from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import psutil

from strategies.common.fields import parse_json
from strategies.common.files import read_small, write_json
from strategies.launcher.process import LAUNCHER_PID

FILE_NAME = "measured.json"

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_SAMPLES = 0.2
# Time for the current step and a checkpoint. A kill after that loses nothing: an
# interrupted run starts again from its beginning.
_SECONDS_TO_STOP = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measurements of one command.

    Attributes:
      exit_code: Exit code of the command; a negative one is the signal that ended it.
      wall_seconds: Seconds from start to end, loading TensorFlow included.
      peak_memory_mib: Peak memory of all its processes together, in MiB.
      loopback_mib: MiB sent over the machine's loopback interface during the run. The
        number includes start-up and shutdown of the cluster, and traffic of other
        programs. A cluster in a private network namespace is counted there, without its
        last fifth of a second. None if not counted.
      other_busy_cores: Mean number of cores that other programs kept busy. They slow
        runs down, some more than others.
    """

    exit_code: int
    wall_seconds: float
    peak_memory_mib: float
    loopback_mib: float | None
    other_busy_cores: float

    def write(self, folder: pathlib.Path) -> None:
        write_json(folder / FILE_NAME, dataclasses.asdict(self))


def read_measured(folder: pathlib.Path) -> dict[str, Any]:
    """Returns what `Measured.write` wrote; an empty dictionary if absent or damaged."""
    try:
        content = parse_json(read_small(folder / FILE_NAME))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def started(
    command: Sequence[str], output: IO[str] | int, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Starts a command, and ends it at the end of the block if it still runs.

    The command runs in a new session, so that Ctrl-C reaches it through this process
    only. It ends with this process, even if this process is killed.

    Args:
      command: Program with its arguments.
      output: File of its standard output and error, or `subprocess.PIPE`.
      **environment: Environment variables in addition to those of this process.

    Yields:
      Process, which reads no input.
    """
    process = subprocess.Popen(
        command,
        # The command exits when the process with this id is dead.
        env={**os.environ, **environment, LAUNCHER_PID: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _end(process)


def measure_run(
    command: Sequence[str],
    folder: pathlib.Path,
    log: pathlib.Path,
    stop_requested: Callable[[], bool],
) -> Measured | None:
    """Runs a training to its end, and writes its measurements to the run folder.

    Args:
      command: Command line of the run.
      folder: Folder of the run.
      log: File for what the run prints.
      stop_requested: Function that returns whether to stop the run.

    Returns:
      Measurements; None if the run was asked to stop.
    """
    measured = measure(command, log, stop_requested)
    if measured is not None:
        # A command that ended before its run began has left no folder.
        folder.mkdir(parents=True, exist_ok=True)
        measured.write(folder)
    return measured


def measure(
    command: Sequence[str], log: pathlib.Path, stop_requested: Callable[[], bool]
) -> Measured | None:
    """Runs a command to its end; returns None if it was asked to stop."""
    with log.open("w", encoding="utf-8") as output:
        loopback = _loopback_bytes()
        others = _others_cpu_seconds()
        # Both counters are read before the start, so that their differences cover the
        # run.
        start = time.monotonic()
        with started(command, output) as process:
            sampled = _watch(process, stop_requested)
    wall_seconds = time.monotonic() - start
    if stop_requested():
        return None
    sent = sampled.loopback_bytes(since=loopback)
    others_seconds = max(_others_cpu_seconds() - others, 0.0)
    return Measured(
        exit_code=process.returncode,
        wall_seconds=wall_seconds,
        peak_memory_mib=round(sampled.peak_memory_bytes / 2**20, 1),
        loopback_mib=None if sent is None else round(sent / 2**20, 3),
        other_busy_cores=round(others_seconds / wall_seconds, 3),
    )


@dataclasses.dataclass(slots=True)
class _Sampled:
    """Samples of running processes.

    Attributes:
      peak_memory_bytes: Peak memory of all processes together, in bytes.
      sent_bytes: Bytes sent over loopback in network namespaces other than that of this
        process, by namespace.
    """

    peak_memory_bytes: int = 0
    sent_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def sample(self, processes: Sequence[psutil.Process]) -> None:
        self.peak_memory_bytes = max(self.peak_memory_bytes, _memory_bytes(processes))
        self.sent_bytes.update(_sent_elsewhere(processes))

    def loopback_bytes(self, since: int | None) -> int | None:
        """Returns the bytes sent over loopback in private networks, or in this one.

        If the processes had no private network, the count is that of this network.

        Args:
          since: Bytes that this network's loopback interface had sent at the start.
        """
        if self.sent_bytes:
            return sum(self.sent_bytes.values())
        now = _loopback_bytes()
        return None if now is None or since is None else now - since


def _watch(process: subprocess.Popen, stop_requested: Callable[[], bool]) -> _Sampled:
    """Waits for the end of a process, or a stop request, and samples meanwhile."""
    tree = psutil.Process(process.pid)
    sampled = _Sampled()
    next_sample = time.monotonic()
    while process.poll() is None and not stop_requested():
        if time.monotonic() >= next_sample:
            with contextlib.suppress(psutil.Error):
                sampled.sample([tree, *tree.children(recursive=True)])
            next_sample = time.monotonic() + _SECONDS_BETWEEN_SAMPLES
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return sampled


def _memory_bytes(processes: Sequence[psutil.Process]) -> int:
    """Returns the memory of processes in bytes, with shared pages counted once.

    The private memory of all processes is added up; of their shared pages, nearly all
    TensorFlow's own code, the largest number is added. Reading the exact share of each
    page (PSS) takes 13 ms for a process that has loaded TensorFlow, and holds that
    process up; this takes 0.02 ms.
    """
    private = shared = 0
    for each in processes:
        with contextlib.suppress(psutil.Error):
            memory = each.memory_info()
            # Not every operating system reports shared pages.
            shared_here = getattr(memory, "shared", 0)
            private += memory.rss - shared_here
            shared = max(shared, shared_here)
    return private + shared


def _sent_elsewhere(processes: Sequence[psutil.Process]) -> dict[str, int]:
    """Returns bytes sent over loopback in other network namespaces, by namespace.

    A new namespace counts from zero (man 7 network_namespaces, man 5 proc_pid_net).
    """
    sent: dict[str, int] = {}
    with contextlib.suppress(OSError):
        here = os.readlink("/proc/self/ns/net")
        for each in processes:
            # The process may have ended since the list was made.
            with contextlib.suppress(OSError):
                namespace = os.readlink(f"/proc/{each.pid}/ns/net")
                if namespace not in (here, *sent):
                    counters = pathlib.Path(f"/proc/{each.pid}/net/dev").read_text()
                    (counts,) = re.findall(r"^ *lo:(.*)$", counters, re.MULTILINE)
                    # The first eight columns count received traffic; the ninth is bytes
                    # sent.
                    sent[namespace] = int(counts.split()[8])
    return sent


def _loopback_bytes() -> int | None:
    interface = psutil.net_io_counters(pernic=True).get("lo")
    return None if interface is None else interface.bytes_sent


def _others_cpu_seconds() -> float:
    """Returns processor seconds used by neither this process nor its children."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    # The time of guests is part of the time of users already.
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
