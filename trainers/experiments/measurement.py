"""Commands in separate processes, and measurements of them from outside."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import psutil

from strategies.common.files import read_small, write_json
from strategies.common.strict_json import parse_json
from strategies.processes.forked_process import Process
from strategies.processes.parent import LAUNCHER_PID
from strategies.processes.starter import ProcessStarter, Program
from trainers.experiments.process_sampling import (
    Samples,
    loopback_bytes,
    others_cpu_seconds,
)

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
      wall_seconds: Seconds from start to end. They include the import of TensorFlow
        unless the process was forked from a template.
      peak_memory_mib: Peak memory of all its processes together, in MiB, as if each had
        been started by itself. Processes that only start others do not count.
      loopback_mib: MiB sent over the machine's loopback interface during the run, with
        start-up and shutdown of the cluster and the traffic of other programs. For a
        cluster in private network namespaces it is the traffic in these, emulated
        networks included, except in the last fifth of a second. None if not counted.
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
    command: Sequence[str],
    output: IO[str] | int,
    environment: Mapping[str, str],
    starter: ProcessStarter,
) -> Iterator[Process]:
    """Starts a command, and ends it at the end of the block if it still runs.

    The command runs in a new session, so that Ctrl-C reaches it through this process
    only. It ends with this process, even if this process is killed. Its standard output
    and error go to `output`, a file or `subprocess.PIPE`.

    Yields:
      Process, which reads no input.
    """
    process = starter.start(
        Program(
            command=command,
            # The command exits when the process with this id is dead.
            environment={**environment, LAUNCHER_PID: str(os.getpid())},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    )
    with process:
        try:
            yield process
        finally:
            _end(process)


def measure(
    command: Sequence[str],
    log: pathlib.Path,
    stop_requested: Callable[[], bool],
    environment: Mapping[str, str],
    starter: ProcessStarter,
) -> Measured | None:
    """Runs a command to its end, and measures it.

    Returns:
      Measurements; None if the command was asked to stop.
    """
    # The imports of a template would count as work of other programs.
    starter.prepare(environment)
    with log.open("w", encoding="utf-8") as output:
        loopback = loopback_bytes()
        others = others_cpu_seconds()
        # Both counters are read before the start, so that their differences cover the
        # run.
        start = time.monotonic()
        with started(command, output, environment, starter) as process:
            templates = [psutil.Process(pid) for pid in starter.template_pids()]
            sampled = _watch(process, stop_requested, Samples(templates))
    wall_seconds = time.monotonic() - start
    if stop_requested():
        return None
    sent = sampled.sent_over_loopback(since=loopback)
    others_seconds = max(others_cpu_seconds() - others, 0.0)
    return Measured(
        exit_code=process.returncode,
        wall_seconds=wall_seconds,
        peak_memory_mib=round(sampled.peak_memory_bytes / 2**20, 1),
        loopback_mib=None if sent is None else round(sent / 2**20, 3),
        other_busy_cores=round(others_seconds / wall_seconds, 3),
    )


def _watch(
    process: Process, stop_requested: Callable[[], bool], sampled: Samples
) -> Samples:
    """Waits for the end of a process, or a stop request, and samples meanwhile."""
    tree = psutil.Process(process.pid)
    next_sample = time.monotonic()
    while process.poll() is None and not stop_requested():
        if time.monotonic() >= next_sample:
            with contextlib.suppress(psutil.Error):
                sampled.sample([tree, *tree.children(recursive=True)])
            next_sample = time.monotonic() + _SECONDS_BETWEEN_SAMPLES
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return sampled


def _end(process: Process) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
    if process.poll() is None:
        process.kill()
    process.wait()
