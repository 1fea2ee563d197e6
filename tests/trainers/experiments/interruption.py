"""Comparisons that are interrupted and continued."""

import contextlib
import dataclasses
import pathlib
import signal
import subprocess
from collections.abc import Callable, Sequence

import psutil

from strategies.processes.forked_process import Process
from tests import processes
from tests.trainers.experiments.compare.run_factory import made_runs


@dataclasses.dataclass(frozen=True)
class ContinuedComparison:
    """A comparison that was interrupted and continued.

    Attributes:
      folder: Folder of the comparison.
      interrupted: Result of the first process.
      kept: Time of each result that the first process wrote, by the run's folder.
      continued: Result of the second process.
    """

    folder: pathlib.Path
    interrupted: subprocess.CompletedProcess[str]
    kept: dict[pathlib.Path, int]
    continued: subprocess.CompletedProcess[str]


def interrupted_and_continued(
    here: pathlib.Path,
    command: Sequence[str],
    pattern: str,
    is_due: Callable[[Process], bool],
) -> ContinuedComparison:
    """Runs a comparison in `here`/comparison, interrupts it and runs it again.

    Args:
      here: Empty folder.
      command: Flags, with --run_dir=comparison.
      pattern: Glob of the measurements of the runs.
      is_due: Function of the process that returns whether to interrupt it now.
    """
    folder = here / "comparison"
    with processes.started(*command, folder=here) as process:
        processes.wait_until(lambda: is_due(process), "runs to interrupt", process)
        children = children_of(process)
        process.send_signal(signal.SIGINT)
        interrupted = processes.end_of(process)
    assert not any(child.is_running() for child in children)
    kept = results_in(folder, pattern)
    return ContinuedComparison(
        folder, interrupted, kept, processes.run(*command, folder=here)
    )


def interrupted_and_continued_by_hand(
    here: pathlib.Path, command: Sequence[str], pattern: str, num_runs: int
) -> ContinuedComparison:
    """Does the same in this process, with runs made by hand.

    Args:
      here: Empty folder.
      command: Flags, with --run_dir=comparison.
      pattern: Glob of the measurements of the runs.
      num_runs: Number of runs before the interruption.
    """
    num_begun = 0

    def interrupt() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == num_runs + 1:
            signal.raise_signal(signal.SIGINT)

    folder = here / "comparison"
    with made_runs(here, interrupt) as compare:
        interrupted = compare(*command)
        kept = results_in(folder, pattern)
        assert len(kept) == num_runs
        return ContinuedComparison(folder, interrupted, kept, compare(*command))


def results_in(folder: pathlib.Path, pattern: str) -> dict[pathlib.Path, int]:
    """Returns the time of each complete run's result, in ns, by the run's folder."""
    found = folder.glob(pattern)
    return {p.parent: (p.parent / "result.json").stat().st_mtime_ns for p in found}


def children_of(process: Process) -> list[psutil.Process]:
    """Returns the processes that a process has started, also indirectly."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []
