"""Numbers that a run reports of itself, of given calls of the inner loop and lines."""

from __future__ import annotations

import math
import types
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from trainers.loop.loop import StepEvent
from trainers.reporting import metrics
from trainers.reporting.metrics import Staleness, ThroughputMeter
from trainers.reporting.metrics_writer import last_values


def _event(seconds: float, examples: Sequence[int]) -> Any:
    results = types.SimpleNamespace(
        step_seconds=np.full(len(examples), seconds / len(examples)),
        sums={"examples": np.array(examples)},
        applied_steps=len(examples),
    )
    return types.SimpleNamespace(results=results, call_seconds=seconds)


def test_speed_and_step_time_are_of_one_call() -> None:
    meter = ThroughputMeter()
    # Two calls of warm-up, and an even number of others, of unlike batches.
    for seconds, examples in ((9, [1]), (9, [1]), (1, [10]), (2, [40, 40])):
        meter(_event(seconds, examples))
    assert meter.summary()["examples_per_second"] == 40
    assert meter.milliseconds_per_step == pytest.approx(1000)
    meter(_event(1, [20]))
    assert meter.summary()["examples_per_second"] == 20
    assert meter.milliseconds_per_step == pytest.approx(1000)


def test_speed_is_that_of_all_fits() -> None:
    meter = ThroughputMeter()
    for speeds in ((9, 9, 100, 101, 102), (9, 9)):
        meter.begin()
        for speed in speeds:
            meter(_event(1, [speed]))
    assert meter.summary()["examples_per_second"] == 101


def test_fits_of_few_calls_have_a_speed() -> None:
    meter = ThroughputMeter()
    for speed in (9, 9, 100, 101, 102):
        meter.begin()
        meter(_event(1, [speed]))
    assert meter.summary()["examples_per_second"] == 101


def test_a_long_run_keeps_a_bounded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_KEPT_CALLS", 8)
    meter = ThroughputMeter()
    for number in range(102):
        # Examples per second are the number of the call, apart from two of warm-up.
        meter(_event(1, [max(number, 1)]))
    # Every sixteenth is kept; the first is not warm: 16, 32, 48, 64, 80, 96.
    assert meter.summary()["examples_per_second"] == 64
    assert len(meter._calls) == 7


@pytest.mark.parametrize("counts", [{3: 1}, {0: 7, 9: 1}, {5: 2, 1: 3, 40: 4, 2: 12}])
def test_percentiles_of_staleness_are_those_of_numpy(counts: dict[int, int]) -> None:
    updates = np.repeat(list(counts), list(counts.values()))
    results: Any = types.SimpleNamespace(staleness=updates, workers=None)
    staleness = Staleness()
    staleness(StepEvent(step=1, last_step=1, results=results, call_seconds=1.0))
    summary = staleness.summary()
    assert summary is not None
    assert summary["mean"] == pytest.approx(updates.mean())
    assert summary["max"] == updates.max()
    for percent in (50, 95):
        expected = np.percentile(updates, percent)
        assert summary[f"p{percent}"] == pytest.approx(expected), percent
        assert staleness.scalars()[f"staleness/p{percent}"] == summary[f"p{percent}"]


def test_staleness_of_more_updates_than_fit_into_memory_is_summarized() -> None:
    staleness = Staleness()
    staleness._all = Counter({1: 10**15, 3: 10**15})
    summary = staleness.summary()
    assert summary is not None
    assert (summary["mean"], summary["p50"], summary["p95"]) == (2, 2, 3)


def test_an_evaluation_that_is_not_finite_takes_the_place_of_earlier_ones() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "eval_loss": 1.0, "eval_accuracy": 0.5},
        {"step": 1, "train_loss": 2.0, "step_milliseconds": {}},
        {"step": 2, "eval_accuracy": 0.25},
        {"step": 2, "train_loss": 3.0, "step_milliseconds": {}},
    ]
    last = last_values(rows)
    assert math.isnan(last.pop("eval_loss"))
    assert last == {"eval_accuracy": 0.25, "train_loss": 3.0}
