"""Tests of the file of a task's step phases; tests/conformance has real ones."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from strategies.common.types import StepPhases
from trainers.reporting.step_phases import PhaseMeter


def test_a_long_call_makes_no_larger_file() -> None:
    """A file of a million steps would be larger than a report may read."""
    parts: Any = SimpleNamespace(
        loop_function=SimpleNamespace(num_traces=lambda: 1),
        applied_steps=lambda: 0,
        model=SimpleNamespace(trainable_variables=[]),
    )
    kinds = ("summary", "eval", "checkpoint")
    clock: Any = SimpleNamespace(seconds=lambda: dict.fromkeys(kinds, 0.0), blocks=[])
    meter = PhaseMeter("chief-0", parts, clock)
    steps = np.arange(100_000.0)
    results = SimpleNamespace(
        phases=StepPhases(start=steps, input=steps, prefetch=steps, stop=steps),
        workers=None,
    )
    event: Any = SimpleNamespace(is_last=False, results=results)
    for _ in range(4):
        meter(event)
    columns = meter.content()["steps"]
    assert {len(column) for column in columns.values()} == {4_000}
    assert columns["start"][-1] == 3_999.0
    meter._retracing.end()
