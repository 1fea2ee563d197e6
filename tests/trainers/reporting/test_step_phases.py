"""Tests of the file of a task's step phases; tests/conformance has real ones."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strategies.common.types import StepPhases
from trainers.reporting.step_phases import PhaseMeter


@pytest.mark.parametrize(("steps_per_call", "num_calls"), [(100_000, 4), (30, 500)])
def test_the_newest_steps_are_kept_and_the_time_of_all(
    steps_per_call: int, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a million steps would be larger than a report may read."""
    parts: Any = SimpleNamespace(
        loop_function=SimpleNamespace(num_traces=lambda: 1),
        applied_steps=lambda: 0,
        model=SimpleNamespace(trainable_variables=[]),
    )
    kinds = ("summary", "eval", "checkpoint")
    clock: Any = SimpleNamespace(seconds=lambda: dict.fromkeys(kinds, 0.0), blocks=[])
    meter = PhaseMeter("chief-0", parts, clock)
    # Somebody sets the clock back.
    monkeypatch.setattr("time.time", itertools.count(0, -3600).__next__)
    starts = np.arange(0.0, num_calls * steps_per_call)
    lengths = np.where(starts < starts[-1] / 2, 0.25, 1.0)
    half = steps_per_call // 2
    workers = np.array(["tower-0"] * half + ["tower-1"] * half)
    for call in np.split(np.arange(len(starts)), num_calls):
        start, none = starts[call], np.zeros(steps_per_call)
        phases = StepPhases(start, none, none, stop=start + lengths[call])
        results = SimpleNamespace(
            phases=phases, workers=workers, step_seconds=lengths[call] / 2
        )
        event: Any = SimpleNamespace(is_last=False, results=results)
        meter(event)
    meter._retracing.end()
    content = meter.content()
    assert content["wall_seconds"] > 0
    columns = content["steps"]
    assert columns.keys() == {"worker", "start", "input", "prefetch", "stop"}
    (num_kept,) = {len(column) for column in columns.values()}
    assert 3_000 < num_kept <= 4_000
    assert columns["start"] == sorted(columns["start"])
    assert columns["start"][-1] > starts[-1] - 30
    # No worker is left out, whose steps may be the last of a call.
    assert columns["worker"].count("tower-1") == num_kept / 2
    # The first two calls are left out.
    expected = lengths[2 * steps_per_call :].sum() / 2
    assert content["seconds"]["in_steps"] == pytest.approx(expected)
    assert content["seconds"]["in_kept_steps"] == pytest.approx(num_kept / 2)
