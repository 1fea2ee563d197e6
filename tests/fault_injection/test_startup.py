"""Tests of faults at start-up which TensorFlow alone would not end.

tests/cluster/test_task_endings.py has tasks that never start and addresses in use.
"""

import pathlib
import signal
import socket
import sys
import time

import pytest

from tests.cluster.tasks import cluster
from tests.fault_injection.scenarios.startup import FLAGS, died_at_start_up
from tests.markers import further

pytestmark = pytest.mark.cluster


# The leader dies while the other waits for it; a follower dies before its leader knows
# it, or when the leader waits for its part of the first sum.
@pytest.mark.parametrize(
    ("victim", "delay"),
    [("worker-0", 0.0), further("worker-1", 0.0), further("worker-1", 0.7)],
)
def test_a_task_that_dies_when_all_have_met_is_named_by_the_others(
    victim: str, delay: float, tmp_path: pathlib.Path
) -> None:
    others = died_at_start_up(victim, delay, tmp_path)
    assert set(others.exit_codes.values()) == {138}
    assert victim not in others.error_lines
    for lines in others.error_lines.values():
        (line,) = lines
        assert line.startswith(others.said)


# Task 1 takes a while between the meeting and its connection.
_IS_LATE = """
import pathlib, sys, time
from strategies import multi_worker_mirrored

have_met = pathlib.Path(sys.argv.pop(1))
meet = multi_worker_mirrored.wait_for_cluster

def meet_and_wait(cluster, seconds):
    meet(cluster, seconds)
    have_met.touch()
    time.sleep(7)

multi_worker_mirrored.wait_for_cluster = meet_and_wait
from trainers.main import main
sys.exit(main(["main", *sys.argv[1:]]))
"""


@pytest.mark.exhaustive
def test_sigterm_ends_a_leader_that_waits_for_a_late_task(
    tmp_path: pathlib.Path,
) -> None:
    """TensorFlow's handler takes SIGTERM, and threads of NumPy do not block it."""
    flags = ("--strategy=multi_worker_mirrored", *FLAGS)
    have_met = tmp_path / "have-met"
    begin = {
        # Not by `-m` alone: a process that is forked has no threads of NumPy.
        "worker-0": [sys.executable, "-u", "-m", "trainers.main"],
        "worker-1": [sys.executable, "-c", _IS_LATE, str(have_met)],
    }
    with cluster(tmp_path, {"worker": 2}, *flags, absent=tuple(begin)) as tasks:
        for name, words in begin.items():
            tasks.start(name, begin=words)
        tasks.wait_until(have_met.exists, "the meeting")
        # The leader makes its server meanwhile.
        time.sleep(2)
        tasks.started["worker-0"].send(signal.SIGTERM)
        assert tasks.exit_codes() == {"worker-0": 143, "worker-1": 138}


def test_a_port_in_use_at_another_address_of_the_machine_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    """TensorFlow listens at all addresses, and would end with a traceback."""
    with cluster(
        tmp_path,
        {"chief": 1, "worker": 1, "ps": 1},
        "--strategy=parameter_server",
        absent=("chief-0", "worker-0", "ps-0"),
    ) as tasks:
        port = int(tasks.address("ps-0").rpartition(":")[2])
        with socket.create_server(("127.0.0.2", port)):
            assert tasks.start("ps-0").exit_code() == 2
        (line,) = tasks.started["ps-0"].error_lines()
        assert line.startswith(f"error: the address {tasks.address('ps-0')} of ps-0 ")
        assert "its port is in use" in line
