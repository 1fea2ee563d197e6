"""Checks that a run that makes no progress prints its stacks and ends.

The scenario `stall-worker` is left out: its timeout must be below the 10 s of
TensorFlow's heartbeats, and three tasks may take longer to start on a busy machine.
"""

import pytest

from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios.stall import SCENARIOS
from tests.markers import further


@pytest.mark.parametrize(
    ("name", "seed"),
    [("stall-input", 0), further("stall-input", 1), further("stall-ps", 0)],
)
def test_it_ends_with_stacks_and_a_line(name: str, seed: int) -> None:
    (scenario,) = (s for s in SCENARIOS if s.name == name)
    assert_promise_holds(scenario, seed)
