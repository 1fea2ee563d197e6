"""Checks that processes that diverge agree on the checkpoint to which they return.

tests/trainers/fault_tolerance/test_rollback.py tests it in one process, and
tests/conformance/test_divergence.py under every strategy.
"""

import pathlib
import random

import pytest

from tests import processes
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios import divergence

pytestmark = pytest.mark.cluster


def test_workers_go_back_and_complete(tmp_path: pathlib.Path) -> None:
    _, rollbacks = divergence.goes_back(
        divergence.AVERAGING_WORKERS, random.Random(0), tmp_path
    )
    result = processes.result_of(tmp_path / "run")
    assert result["num_replicas"] == 2
    assert (result["status"], result["steps"]) == ("completed", 150)
    assert result["rollbacks"] == len(rollbacks) >= 1


# test_rollback.py resumes such a run.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["divergence-rollback-workers", "divergence-rollback-ps"]
)
def test_a_cluster_goes_back_and_completes_again(name: str) -> None:
    (scenario,) = (s for s in divergence.SCENARIOS if s.name == name)
    assert_promise_holds(scenario, seed=0)
