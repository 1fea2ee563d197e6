"""Checks that a cluster whose tasks are killed keeps all applied updates."""

import pathlib
import random

import pytest

from tests import processes
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios import all_scenarios, lost_tasks
from tests.markers import further

pytestmark = pytest.mark.cluster

BY_NAME = {scenario.name: scenario for scenario in all_scenarios()}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # With this seed the victim is worker 0 of 2, the chief.
        ("multi-worker-killed", 1),
        further("multi-worker-killed", 0),
        # Workers start again in the same way, whichever sums they were in. Exchanges
        # and checkpoints of these two are in test_outer_optimizer.py and
        # test_sharded_optimizer_state.py.
        further("outer-optimizer-worker-killed", 1),
        # With this seed the victim is worker 1 of 2.
        further("killed-within-an-all-gather", 0),
        further("ps-killed", 0),
        further("chief-killed", 0),
    ],
)
def test_all_tasks_start_again_and_lose_nothing(name: str, seed: int) -> None:
    assert_promise_holds(BY_NAME[name], seed)


def test_no_update_of_a_killed_worker_is_lost(tmp_path: pathlib.Path) -> None:
    lost_tasks.busy_workers_killed(random.Random(3), tmp_path, num_kills=1)
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["restarts"]) == ("preempted", 1)
    assert 0 <= result["attempted_steps"] - result["steps"] <= 1
