"""A scenario of a launcher that is killed and cannot inform its tasks."""

import contextlib
import json
import pathlib
import random
import time
from typing import NamedTuple

import psutil

from strategies.cluster.probes import is_listening
from strategies.processes.parent import LAUNCHER_PID
from tests import processes
from tests.fault_injection.continuation import SMALL
from tests.fault_injection.scenario import Scenario

STRATEGIES = ("multi_worker_mirrored", "parameter_server")
# The launcher is killed between its first line of Python and some seconds of training.
LATEST_SECONDS = 12.0

_PATIENCE_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 0.1


class Aftermath(NamedTuple):
    """The processes and ports left of a killed launcher, and for how many seconds."""

    left: list[str]
    seconds: float


def killed_after(seconds: float, strategy: str, folder: pathlib.Path) -> Aftermath:
    """Kills a launcher and waits until its processes and their ports are gone."""
    flags = (
        *(*SMALL, f"--strategy={strategy}", "--train_steps=1000000"),
        # In a private network this process could not see the ports.
        "--set=strategy.isolate_network=off",
    )
    with processes.started(
        f"--run_dir={folder}/run", *flags, folder=folder
    ) as launcher:
        time.sleep(seconds)
        assert launcher.poll() is None, f"ended by itself: {launcher.returncode}"
        launcher.kill()
        killed = time.monotonic()
        addresses = _addresses_of_tasks(launcher.pid)
        launcher.wait()
        while left := _left(launcher.pid, addresses):
            waited = time.monotonic() - killed
            if waited > _PATIENCE_SECONDS:
                end_tasks_of(launcher.pid)
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return Aftermath(left, time.monotonic() - killed)


def tasks_of(launcher: int) -> list[psutil.Process]:
    """Returns the processes that a launcher has started, even after its end.

    These include the processes that its tasks have started.
    """
    found = []
    for process in psutil.process_iter():
        try:
            theirs = process.environ().get(LAUNCHER_PID) == str(launcher)
            if theirs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_tasks_of(launcher: int) -> None:
    """Kills the processes that outlive a launcher."""
    for task in tasks_of(launcher):
        with contextlib.suppress(psutil.Error):
            task.kill()


def _addresses_of_tasks(launcher: int) -> set[str]:
    addresses: set[str] = set()
    for task in tasks_of(launcher):
        with contextlib.suppress(psutil.Error):
            # A process that is ending has no environment left.
            cluster = json.loads(task.environ().get("TF_CONFIG", "{}")).get("cluster")
            addresses.update(
                address for job in (cluster or {}).values() for address in job
            )
    return addresses


def _left(launcher: int, addresses: set[str]) -> list[str]:
    listening = [address for address in sorted(addresses) if is_listening(address)]
    return [str(task.pid) for task in tasks_of(launcher)] + listening


def _attempt(chosen: random.Random, folder: pathlib.Path) -> float:
    moment = chosen.uniform(0.0, LATEST_SECONDS)
    left, seconds = killed_after(moment, chosen.choice(STRATEGIES), folder)
    assert not left, f"left for {seconds:.0f} s: {left}"
    return seconds


SCENARIOS = (
    Scenario(
        name="launcher-killed",
        promise="no process and no port is left",
        tries=20,
        attempt=_attempt,
        most_seconds=5.0,
    ),
)
