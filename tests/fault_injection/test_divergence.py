"""Checks that processes that diverge agree on the checkpoint to which they return.

tests/trainers/fault_tolerance/test_rollback.py tests it in one process, and
tests/conformance/test_divergence.py under every strategy.
"""

from __future__ import annotations

import pytest

from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios.divergence import SCENARIOS
from tests.markers import further

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    "name", ["divergence-rollback-workers", further("divergence-rollback-ps")]
)
def test_a_cluster_goes_back_and_completes(name: str) -> None:
    (scenario,) = (s for s in SCENARIOS if s.name == name)
    assert_promise_holds(scenario, seed=0)
