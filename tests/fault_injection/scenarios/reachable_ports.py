"""A scenario that tries to connect to the ports of a cluster that trains."""

import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence

import psutil

from strategies.processes.forked_process import Process
from tests import processes
from tests.fault_injection.scenario import Scenario

_STRATEGIES = (
    ("--strategy=multi_worker_mirrored", "--num_workers=2"),
    ("--strategy=multi_worker_mirrored", "--num_workers=3"),
    ("--strategy=parameter_server", "--update=async", "--num_ps=2"),
    ("--strategy=parameter_server", "--update=sync"),
)
_LONG = (
    *("--model=mlp", "--train_steps=1000000", "--checkpoint_every_steps=50"),
    *(*processes.NO_EVALUATION, "--set=report.histogram_every_steps=none"),
    # The delay leaves most of the processor to other tests.
    "--set=length.step_delay_milliseconds=10",
)
# The number is TCP_LISTEN of Linux, include/net/tcp_states.h.
_LISTENS = "0A"
_MOST_SECONDS_UNTIL_NOTHING_IS_LEFT = 5.0


def listening_ports(task: psutil.Process) -> set[int]:
    """Returns the ports at which any process in a task's network listens."""
    ports = set()
    for kind in ("tcp", "tcp6"):
        table = pathlib.Path(f"/proc/{task.pid}/net/{kind}").read_text(encoding="ascii")
        for line in table.splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == _LISTENS:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports


def interfaces(task: psutil.Process) -> set[str]:
    """Returns the interfaces of a task's network."""
    text = pathlib.Path(f"/proc/{task.pid}/net/dev").read_text(encoding="ascii")
    return set(re.findall(r"^ *([^ :]+):", text, re.MULTILINE))


def reachable(ports: set[int]) -> set[tuple[str, int]]:
    """Returns the addresses and ports of this machine that accept a connection."""
    addresses = [
        (address.family, address.address)
        for of_interface in psutil.net_if_addrs().values()
        for address in of_interface
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    found = set()
    for family, address in addresses:
        for port in ports:
            with socket.socket(family) as connection:
                connection.settimeout(2.0)
                with contextlib.suppress(OSError):
                    connection.connect((address, port))
                    found.add((address, port))
    return found


@contextlib.contextmanager
def training(
    folder: pathlib.Path, *flags: str
) -> Iterator[tuple[Process, Sequence[psutil.Process]]]:
    """Yields a launcher whose cluster has written a checkpoint, and its tasks."""
    run_dir = folder / "run"
    with processes.started(
        f"--run_dir={run_dir}", *_LONG, *flags, folder=folder
    ) as launcher:
        processes.wait_until(
            lambda: bool(processes.checkpoints_of(run_dir)), "a checkpoint", launcher
        )
        yield launcher, processes.tasks_of(launcher.pid)


def _attempt(chosen: random.Random, folder: pathlib.Path) -> float:
    """Tries all ports, then kills the launcher.

    Returns:
      Seconds until no process is left; the network and its ports end with them.
    """
    with training(folder, *chosen.choice(_STRATEGIES)) as (launcher, tasks):
        time.sleep(chosen.uniform(0, 2))
        here = os.readlink("/proc/self/ns/net")
        networks = {os.readlink(f"/proc/{task.pid}/ns/net") for task in tasks}
        assert len(networks) == 1, "the tasks are in several networks"
        assert networks != {here}, "the tasks are in everybody's network"
        assert interfaces(tasks[0]) == {"lo"}, f"it has {interfaces(tasks[0])}"
        ports = listening_ports(tasks[0])
        assert len(ports) >= len(tasks), f"{len(tasks)} tasks listen at {ports}"
        reached = reachable(ports)
        assert not reached, f"{reached} can be reached"
        with processes.networks_kept(tasks) as processes_inside:
            assert {task.pid for task in tasks} <= set(processes_inside())
            launcher.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            psutil.wait_procs(tasks, timeout=processes.PATIENCE_SECONDS)
            seconds = time.monotonic() - killed
            left = processes_inside()
        assert not left, f"processes {left} are left in that network"
        return seconds


SCENARIOS = (
    Scenario(
        name="reachable-ports",
        promise="nobody else reaches a local cluster, and its ports end with it",
        tries=10,
        attempt=_attempt,
        most_seconds=_MOST_SECONDS_UNTIL_NOTHING_IS_LEFT,
    ),
)
