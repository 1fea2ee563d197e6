"""Several processes that diverge agree on where they go back to.

In one process: tests/trainers/fault_tolerance/test_rollback.py; under every strategy:
tests/conformance/test_divergence.py.
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
