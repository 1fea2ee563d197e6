"""Scenarios of tasks that do not start, start twice, or end while the others meet."""

import pathlib
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.cluster.tasks import Task, cluster
from tests.fault_injection.continuation import SMALL
from tests.fault_injection.scenario import Scenario

CLUSTERS = {
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 1, "ps": 1},
}
STARTUP_TIMEOUT_SECONDS = 15
# The run is long enough to start a second process while the first of its name trains.
FLAGS = (
    *SMALL,
    "--train_steps=1000",
    f"--set=strategy.startup_timeout_seconds={STARTUP_TIMEOUT_SECONDS}",
)
LOST = 138


def _names(strategy: str) -> list[str]:
    jobs = CLUSTERS[strategy].items()
    return [f"{job}-{index}" for job, count in jobs for index in range(count)]


def _one_missing(chosen: random.Random, folder: pathlib.Path) -> float:
    strategy = chosen.choice(list(CLUSTERS))
    missing = chosen.choice(_names(strategy))
    flags = (f"--strategy={strategy}", *FLAGS)
    with cluster(folder, CLUSTERS[strategy], *flags, absent=(missing,)) as tasks:
        started = time.monotonic()
        codes = tasks.exit_codes()
        seconds = time.monotonic() - started
        assert set(codes.values()) == {LOST}, f"without {missing}: {codes}"
        for name, lines in tasks.error_lines().items():
            assert len(lines) == 1, f"{name} says {lines}"
            assert f"{missing} at {tasks.address(missing)} did not start" in lines[0]
    return seconds


def _one_twice(chosen: random.Random, folder: pathlib.Path) -> float:
    """Starts a task again while the first process of its name starts or runs."""
    strategy = chosen.choice(list(CLUSTERS))
    name = chosen.choice(_names(strategy))
    with cluster(folder, CLUSTERS[strategy], f"--strategy={strategy}", *FLAGS) as tasks:
        time.sleep(chosen.choice((0.0, chosen.uniform(0.0, 4.0))))
        second = tasks.start(name, known_as="twin")
        started = time.monotonic()
        refused = _one_refused(tasks.started[name], second)
        seconds = time.monotonic() - started
        lines = refused.error_lines()
        assert len(lines) == 1, f"the second {name} says {lines}"
        # A chief first looks at its folder, in which the first process may have begun.
        accepted = (
            f"{tasks.address(name)} of {name} cannot be used",
            "already holds a run",
        )
        assert any(words in lines[0] for words in accepted), lines
        codes = sorted(tasks.exit_codes().values())
        assert codes == [0] * (len(codes) - 1) + [2], f"with {name} twice: {codes}"
    return seconds


def _one_refused(*tasks: Task) -> Task:
    """Returns the first of the tasks that has ended with exit code 2."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for task in tasks:
            if task.process.poll() == 2:
                return task
        time.sleep(0.05)
    codes = [task.process.poll() for task in tasks]
    raise AssertionError(f"no task was refused: {codes}")


# A task that meets the others and is killed a moment later.
_DIES = """
import importlib, os, signal, sys, threading, time
from strategies.cluster import rendezvous

def meet(cluster, seconds):
    with rendezvous.hold_port(cluster):
        rendezvous.wait_for_tasks(cluster.peers(), seconds)
        # The others have found this one, too.
        time.sleep(1)
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(float(sys.argv[1]), kill).start()

importlib.import_module("strategies.multi_worker_mirrored").wait_for_cluster = meet
from trainers.main import main
sys.exit(main(["main", *sys.argv[2:]]))
"""


class Survivors(NamedTuple):
    """The ends of the tasks whose peer has died.

    Attributes:
      exit_codes: Exit code of each task.
      error_lines: Lines of each task's standard error.
      said: Words with which an error line must begin.
      seconds: Seconds from the peer's death to the end of the last task.
    """

    exit_codes: Mapping[str, int]
    error_lines: Mapping[str, Sequence[str]]
    said: str
    seconds: float


def died_at_start_up(victim: str, delay: float, folder: pathlib.Path) -> Survivors:
    """Lets a task die after all have met, and waits for the others.

    TensorFlow would wait for the dead task, and ignore SIGTERM meanwhile.

    Args:
      victim: Name of the task, of `multi_worker_mirrored`.
      delay: Seconds from the meeting to the death.
      folder: Empty folder for the run.
    """
    # The victim alone imports TensorFlow after it has started: over 15 s on a machine
    # that is busy or has not read TensorFlow's files yet.
    patience = "--set=strategy.startup_timeout_seconds=120"
    flags = ("--strategy=multi_worker_mirrored", *FLAGS, patience)
    num_tasks = CLUSTERS["multi_worker_mirrored"]
    with cluster(folder, num_tasks, *flags, absent=(victim,)) as tasks:
        code = f"import sys; sys.argv.insert(1, '{delay}')\n{_DIES}"
        tasks.start(victim, begin=[sys.executable, "-c", code])
        dead = tasks.started.pop(victim)
        assert dead.exit_code() == -signal.SIGKILL, dead.error_lines()[-5:]
        died = time.monotonic()
        codes = tasks.exit_codes()
        seconds = time.monotonic() - died
        # The watchdog outside of a task ends it by a signal, which shells call 138 too.
        ended = {n: 128 - code if code < 0 else code for n, code in codes.items()}
        said = f"error: {victim} at {tasks.address(victim)} was lost"
        return Survivors(ended, tasks.error_lines(), said, seconds)


def _one_dies(chosen: random.Random, folder: pathlib.Path) -> float:
    victim = chosen.choice(("worker-0", "worker-1"))
    others = died_at_start_up(victim, chosen.uniform(0.0, 1.0), folder)
    codes = others.exit_codes
    assert set(codes.values()) == {LOST}, f"without {victim}: {codes}"
    for name, lines in others.error_lines.items():
        assert len(lines) == 1, f"{name} says {lines}"
        assert lines[0].startswith(others.said), f"{name} says {lines}"
    return others.seconds


SCENARIOS = (
    Scenario(
        name="task-never-starts",
        promise="all others name it by the start-up deadline (15 s, and the import of "
        "TensorFlow before it)",
        tries=10,
        attempt=_one_missing,
        most_seconds=STARTUP_TIMEOUT_SECONDS + 10.0,
    ),
    Scenario(
        name="two-tasks-with-one-address",
        promise="the second is refused in one line, and the run goes on",
        tries=10,
        attempt=_one_twice,
        most_seconds=STARTUP_TIMEOUT_SECONDS + 10.0,
    ),
    Scenario(
        name="task-lost-at-start-up",
        promise="the others of multi_worker_mirrored name it and end with 138",
        tries=10,
        attempt=_one_dies,
        most_seconds=15.0,
    ),
)
