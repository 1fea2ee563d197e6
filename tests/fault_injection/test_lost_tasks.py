"""One try of what happens to tasks of a cluster that are lost."""

from __future__ import annotations

import pathlib
import random

import pytest

from tests import processes
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios import all_scenarios, lost_tasks

pytestmark = pytest.mark.cluster

BY_NAME = {scenario.name: scenario for scenario in all_scenarios()}


def test_the_weights_are_those_of_the_undisturbed_run() -> None:
    # Worker 0 of 2, who leads.
    assert_promise_holds(BY_NAME["multi-worker-killed"], seed=1)


def test_no_update_of_a_killed_worker_is_lost(tmp_path: pathlib.Path) -> None:
    lost_tasks.busy_workers_killed(random.Random(3), tmp_path, num_kills=1)
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["restarts"]) == ("preempted", 1)
    assert 0 <= result["attempted_steps"] - result["steps"] <= 1
