"""A run that makes no progress says where it stands, and ends.

Not here: a worker that stands still. The limit must be below the 10 s of TensorFlow's
own heartbeats then, and three tasks may take longer to start on a busy machine.
"""

from __future__ import annotations

from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios.stall import SCENARIOS


def test_it_ends_with_stacks_and_a_line() -> None:
    (scenario,) = (s for s in SCENARIOS if s.name == "stall-input")
    assert_promise_holds(scenario, seed=0)
