"""Checks that a run without progress names the task that is behind, and its work."""

import shutil

import pytest

from tests.cluster.separate_hosts import reason_for_none
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios.hangs import SCENARIOS
from tests.markers import further

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace, which blocks a disk, is missing"
)
needs_hosts = pytest.mark.skipif(bool(reason_for_none()), reason=reason_for_none())


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # The seeds choose a task other than the chief where a scenario has a choice.
        ("hang-input", 0),
        pytest.param("hang-disk", 1, marks=[needs_strace, pytest.mark.exhaustive]),
        further("hang-input", 1),
        further("hang-python", 0),
        further("hang-python", 1),
        further("hang-computation", 0),
        further("hang-sigstop", 0),
        pytest.param("hang-network", 0, marks=[needs_hosts, pytest.mark.exhaustive]),
        further("hang-served", 0),
        further("hang-served-python", 0),
    ],
)
def test_the_task_behind_is_named(name: str, seed: int) -> None:
    (scenario,) = (s for s in SCENARIOS if s.name == name)
    assert_promise_holds(scenario, seed)
