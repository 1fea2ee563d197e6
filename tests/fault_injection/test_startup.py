"""Tests of faults at start-up which TensorFlow alone would not end.

tests/cluster/test_task_endings.py has tasks that never start and addresses in use.
"""

from __future__ import annotations

import pathlib
import socket

import pytest

from tests.cluster.tasks import cluster
from tests.fault_injection.scenarios.startup import died_at_start_up
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
