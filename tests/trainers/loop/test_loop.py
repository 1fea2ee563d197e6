"""Tests of the outer loop, with calls of the inner loop made by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strategies.common.types import StepResults, SyncedFlags
from trainers.loop.loop import When, run_loop
from trainers.loop.timing import Clock
from trainers.reporting.metrics import MetricsWindow, ThroughputMeter
from trainers.run_dir.train_state import TrainCounters

NUM_CALLS, STEPS_PER_CALL = 10, 50


@pytest.mark.parametrize("set_by", [0.0, -3600.0, 3600.0])
def test_a_clock_that_is_set_changes_the_times_of_one_call_alone(set_by: float) -> None:
    """Steps are timed by the machine's clock, and calls by a monotonic one."""
    calls = iter(range(NUM_CALLS))

    def call(batches: Any, num_steps: int, *_: Any) -> StepResults:
        seconds = np.full(num_steps, 1e-9)
        if next(calls) == 5:
            seconds[7] += set_by
        return StepResults(
            applied_steps=num_steps,
            attempted_steps=num_steps,
            sums={"examples": np.full(num_steps, 64.0)},
            step_seconds=seconds,
            input_seconds=seconds / 4,
            details={},
            agreed=SyncedFlags(),
        )

    length = SimpleNamespace(steps_per_loop=STEPS_PER_CALL, step_delay_milliseconds=1)
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(length=length),
        strategy=SimpleNamespace(call_seconds=1.0, fewest_steps_per_call=1),
        applied_steps=lambda: 0,
        train_steps=NUM_CALLS * STEPS_PER_CALL,
        loop_function=call,
    )
    clock, meter = Clock(), ThroughputMeter()
    window = MetricsWindow(lambda sums: {})
    run_loop(
        parts,
        None,
        [When(meter), When(window)],
        clock,
        TrainCounters(),
        diagnose=lambda _: "",
        stop_requested=lambda: False,
    )
    calls_of_half_a_second = clock.seconds()["train"]
    times = [window.milliseconds(), meter.summary()["step_milliseconds"]]
    for parts_of_a_step in times:
        assert parts_of_a_step["total"] < 1e3 * calls_of_half_a_second
        assert parts_of_a_step["input"] >= 0
        # All steps of one of ten calls, and one of them again.
        assert abs(parts_of_a_step["compute"]) <= 1.5 * parts_of_a_step["total"]
        assert abs(parts_of_a_step["rest"]) <= 0.5 * parts_of_a_step["total"]
    assert 0 <= clock.seconds()["input"] <= calls_of_half_a_second
