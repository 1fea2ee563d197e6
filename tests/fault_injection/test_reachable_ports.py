"""Checks that only its own tasks reach a cluster that trains.

`tests/cluster/test_confinement.py` tests machines with and without private networks.
"""

import os
import pathlib

import pytest

from tests.cluster.test_confinement import possible
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios import reachable_ports

pytestmark = pytest.mark.cluster


@pytest.mark.skipif(not possible(()), reason="no network namespace here")
def test_no_port_of_a_cluster_that_trains_can_be_reached() -> None:
    (scenario,) = reachable_ports.SCENARIOS
    assert_promise_holds(scenario, seed=4)


# The test above could not fail without this. tests/cluster/test_confinement.py switches
# isolation off in less time.
@pytest.mark.exhaustive
def test_the_same_look_finds_the_ports_of_one_that_is_not_confined(
    tmp_path: pathlib.Path,
) -> None:
    """TensorFlow listens at every address of this machine, not only at 127.0.0.1."""
    flags = ("--strategy=multi_worker_mirrored", "--set=strategy.isolate_network=off")
    with reachable_ports.training(tmp_path, *flags) as (_, tasks):
        (task, *_) = tasks
        assert os.readlink(f"/proc/{task.pid}/ns/net") == os.readlink(
            "/proc/self/ns/net"
        )
        ports = {
            connection.laddr.port
            for each in tasks
            for connection in each.net_connections("tcp")
            if connection.status == "LISTEN"
        }
        assert ports <= reachable_ports.listening_ports(task)
        reached = reachable_ports.reachable(ports)
    assert {port for _, port in reached} == ports
    assert len({address for address, _ in reached}) > 1
