"""Tasks that do not start, start twice, or end while the others meet."""

from __future__ import annotations

import pathlib
import random
import time

from benchmarks.faults.continuation import SMALL
from benchmarks.faults.scenario import Scenario
from tests.cluster.tasks import Task, Tasks, cluster

CLUSTERS = {
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 1, "ps": 1},
}
STARTUP_TIMEOUT_SECONDS = 15
# Long enough for a second process to come while the first of its name trains.
FLAGS = (
    *SMALL,
    "--train_steps=1000",
    f"--startup_timeout_seconds={STARTUP_TIMEOUT_SECONDS}",
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
    """A task is started again while the first one of its name starts or runs."""
    strategy = chosen.choice(list(CLUSTERS))
    name = chosen.choice(_names(strategy))
    with cluster(folder, CLUSTERS[strategy], f"--strategy={strategy}", *FLAGS) as tasks:
        time.sleep(chosen.choice((0.0, chosen.uniform(0.0, 4.0))))
        twin = Tasks(tasks.addresses, folder / "twin", tasks.flags)
        twin.folder.mkdir()
        second, first = twin.start(name), tasks.started[name]
        started = time.monotonic()
        try:
            refused, remaining = _one_refused(first, second)
            seconds = time.monotonic() - started
            lines = refused.error_lines()
            assert len(lines) == 1, f"the second {name} says {lines}"
            assert f"{tasks.address(name)} of {name} cannot be used" in lines[0], lines
            tasks.started[name] = remaining
            codes = tasks.exit_codes()
            assert set(codes.values()) == {0}, f"with {name} twice: {codes}"
        finally:
            second.process.kill()
            second.process.wait()
    return seconds


def _one_refused(first: Task, second: Task) -> tuple[Task, Task]:
    """Which of two has ended with 2, and the other one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for refused, remaining in ((first, second), (second, first)):
            if refused.process.poll() == 2:
                return refused, remaining
        time.sleep(0.05)
    raise AssertionError(
        f"neither is refused: {first.process.poll()}, {second.process.poll()}"
    )


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
)
