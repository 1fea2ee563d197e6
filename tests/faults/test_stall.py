"""A run that makes no progress says where it stands, and ends."""

from __future__ import annotations

import pytest

from benchmarks.faults.scenario import attempted
from benchmarks.faults.stall import SCENARIOS

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", ["stall-input", "stall-worker"])
def test_it_ends_with_stacks_and_a_line(name: str) -> None:
    (scenario,) = (s for s in SCENARIOS if s.name == name)
    attempted(scenario, seed=0)
