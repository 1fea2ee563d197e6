"""Numbers that a run reports of itself, of given calls of the inner loop and lines."""

import itertools
import math
import types
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from strategies.common.types import SummaryLevel
from trainers.loop.loop import StepEvent
from trainers.reporting import metrics
from trainers.reporting.metrics import MetricsWindow, Staleness, ThroughputMeter
from trainers.reporting.metrics_writer import last_values


def _event(
    seconds: float,
    examples: Sequence[int],
    steps: Sequence[float] | np.ndarray | None = None,
    observed: SummaryLevel = SummaryLevel.NONE,
) -> Any:
    """Returns a call whose steps are equally long, or of given parts of a second."""
    if steps is None:
        steps = [seconds / len(examples)] * len(examples)
    results = types.SimpleNamespace(
        step_seconds=np.array(steps),
        input_seconds=0.25 * np.array(steps),
        sums={"examples": np.array(examples)},
        workers=None,
        applied_steps=len(examples),
    )
    return types.SimpleNamespace(
        results=results, call_seconds=seconds, observed=observed
    )


def test_speed_and_step_time_are_of_one_window() -> None:
    meter = ThroughputMeter()
    # Two calls of warm-up, and an even number of others, of unlike batches.
    for seconds, examples in ((9, [1]), (9, [1]), (1, [10]), (2, [80])):
        meter(_event(seconds, examples))
    assert meter.summary()["examples_per_second"] == 10
    assert meter.summary()["step_milliseconds"]["total"] == 1000
    meter(_event(1, [20]))
    assert meter.summary()["examples_per_second"] == 20
    assert meter.summary()["step_milliseconds"]["total"] == 1000


def test_parts_of_a_step_add_up_to_the_time_of_its_examples() -> None:
    meter = ThroughputMeter()
    for _ in range(20):
        # A tenth of a call is Python's, which is no part of a step.
        meter(_event(0.1, [64] * 3, [0.04, 0.03, 0.02]))
    summary = meter.summary()
    parts = summary["step_milliseconds"]
    assert sum(parts[name] for name in ("input", "compute", "rest")) == pytest.approx(
        parts["total"]
    )
    assert parts["rest"] == pytest.approx(0.1 * parts["total"])
    assert parts["input"] == pytest.approx(0.25 * 0.9 * parts["total"])
    per_step = 1e3 * 64 / summary["examples_per_second"]
    assert parts["total"] == pytest.approx(per_step)


@pytest.mark.parametrize("steps_per_call", [1, 7, 500, 4000])
def test_equal_steps_have_an_equal_speed_in_calls_of_any_length(
    steps_per_call: int,
) -> None:
    """The speed was 1.3 times as large where rare slow steps were in few calls."""
    random = np.random.default_rng(0)
    seconds = 1e-3 + 0.06 * (random.random(8_000) < 1 / 150)

    def speed_in_calls_of(num_steps: int) -> float:
        meter = ThroughputMeter()
        ends = [1, 2, *range(2 + num_steps, len(seconds), num_steps), len(seconds)]
        for begin, end in itertools.pairwise([0, *ends]):
            steps = seconds[begin:end]
            meter(_event(steps.sum(), [64] * len(steps), steps))
        return meter.summary()["examples_per_second"]

    assert speed_in_calls_of(steps_per_call) == pytest.approx(speed_in_calls_of(50))
    # Slow steps are in the speed.
    assert speed_in_calls_of(50) == pytest.approx(64 / seconds.mean(), rel=0.1)


def test_speed_of_workers_is_that_of_all_of_them() -> None:
    """Their updates are in the order of workers, fast ones before slow ones."""
    meter = ThroughputMeter()
    for _ in range(5):
        event = _event(1, [10] * 100, [0.005] * 80 + [0.03] * 20)
        event.results.workers = np.array(["worker-0"] * 80 + ["worker-1"] * 20)
        meter(event)
    assert meter.summary()["examples_per_second"] == pytest.approx(1000)
    parts = meter.summary()["step_milliseconds"]
    assert parts["p50"] == 5
    # Of the mean step: a quarter of its 10 ms is input, and nothing is Python's.
    assert parts["input"] == pytest.approx(2.5)
    assert parts["rest"] == pytest.approx(0, abs=1e-9)


def test_long_calls_take_no_more_memory_than_their_windows() -> None:
    meter = ThroughputMeter()
    for _ in range(4):
        meter(_event(10, [64] * 1_000))
    assert all(window.base is None for window in meter._windows)
    # Two calls of warm-up, and less than a window of 0.5 s at the end.
    assert 1_940 < sum(map(len, meter._windows)) <= 2_000


def test_percentiles_are_of_the_milliseconds_of_single_steps() -> None:
    meter = ThroughputMeter()
    seconds = np.arange(101) / 1000
    # A tenth of the call is Python's, and each step has a part of it.
    meter(_event(seconds.sum(), [1] * 101, 0.9 * seconds))
    found = meter.summary()["step_milliseconds"]
    percentiles = {"p50": 50, "p90": 90, "p99": 99}
    assert {name: found[name] for name in percentiles} == pytest.approx(percentiles)


def test_times_and_speed_of_a_line_are_of_all_its_calls() -> None:
    window = MetricsWindow(lambda sums: {})
    for seconds, examples in ((1, [10, 10]), (2, [40, 40])):
        event = _event(seconds, examples)
        event.call_seconds *= 2
        window(event)
    assert window.examples_per_second() == pytest.approx(100 / 6)
    # Half of the 6 s of the calls is spent in the four steps, a quarter of it on input.
    assert window.milliseconds() == pytest.approx(
        {"total": 1500, "input": 187.5, "compute": 562.5, "rest": 750}
    )


def test_speed_is_that_of_all_fits() -> None:
    meter = ThroughputMeter()
    for speeds in ((9, 9, 100, 101, 102), (9, 9)):
        meter.begin()
        for speed in speeds:
            meter(_event(1, [speed]))
    assert meter.summary()["examples_per_second"] == 101


def test_speed_leaves_out_the_first_call_of_a_fit_that_observes() -> None:
    """A program of short fits had an eighth of its speed: 221 for 1,744 examples/s."""
    meter = ThroughputMeter()
    for _ in range(2):
        meter.begin()
        for seconds in (9, 9, 0.01, 0.01):
            meter(_event(seconds, [32]))
        meter(_event(9, [32], observed=SummaryLevel.NORMS))
        meter(_event(0.01, [32], observed=SummaryLevel.NORMS))
    summary = meter.summary()
    assert summary["examples_per_second"] == pytest.approx(3_200)
    assert summary["step_milliseconds"]["p99"] == pytest.approx(10)


def test_calls_that_observe_count_more_than_a_trace() -> None:
    meter = ThroughputMeter()
    for _ in range(2):
        meter.begin()
        for seconds, observed in zip((9, 2, 1), SummaryLevel, strict=True):
            meter(_event(seconds, [32], observed=observed))
    assert meter.summary()["examples_per_second"] == 32


@pytest.mark.parametrize("seconds", [1, 1 / 16])
def test_fits_of_few_calls_have_a_speed(seconds: float) -> None:
    meter = ThroughputMeter()
    for speed in (1, 1, 96, 112, 128):
        meter.begin()
        meter(_event(seconds, [int(seconds * speed)]))
    # Without a whole window, the speed is that of the part of one.
    assert meter.summary()["examples_per_second"] == 112


def test_a_long_run_keeps_a_bounded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_KEPT_WINDOWS", 8)
    meter = ThroughputMeter()
    for number in range(102):
        # Examples per second are the number of the call, apart from two of warm-up.
        meter(_event(1, [max(number, 1)]))
    # Every sixteenth after the warm-up is kept: 2, 18, 34, 50, 66, 82, 98.
    assert meter.summary()["examples_per_second"] == 50
    assert len(meter._windows) == 7


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
