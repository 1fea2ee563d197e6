"""Statistics against published values, and how often verdicts are right."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from tests.processes import ROOT
from trainers.experiments.compare import verdicts
from trainers.experiments.compare.statistics import (
    bootstrap_interval,
    detectable,
    equivalence_p_value,
    holm,
    paired,
)

# Student (1908), The probable error of a mean: hours of sleep gained by two drugs in
# ten patients. The paired differences, and the t and p that every textbook repeats.
SLEEP = (1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4)

# Speeds by arm of runs with one seed: twice the same arm, and once that arm with a
# delay of a tenth of its step.
Block = dict[str, float]
SEEDS = 5


def test_a_paired_test_gives_students_own_result() -> None:
    summary = paired(SLEEP)
    assert summary.mean == pytest.approx(1.58)
    assert summary.p_value == pytest.approx(0.002833, abs=1e-6)
    assert summary.interval == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert summary.num_pairs == 10


def test_the_bootstrap_interval_is_near_but_narrower() -> None:
    low, high = paired(SLEEP).bootstrap_interval or (0, 0)
    assert 0.7 < low < 1.2
    # BCa follows the one long night of 4.6 hours further than t does.
    assert 2.1 < high < 2.8


@pytest.mark.parametrize("values", [(2.0, 2.0, 2.0), (1.0, 1.0), (0.0, 0.0, 1e-12)])
def test_a_degenerate_bootstrap_is_still_an_interval(values: tuple[float]) -> None:
    low, high = bootstrap_interval(np.array(values))
    assert min(values) <= low <= high <= max(values)


def test_a_single_difference_has_no_interval() -> None:
    assert paired([0.3]).interval is None
    assert paired([0.3]).p_value is None


def test_equal_differences_leave_no_doubt() -> None:
    assert paired([0.0, 0.0, 0.0]).p_value == 1.0
    assert paired([0.25, 0.25, 0.25]).p_value == 0.0


def test_holm_steps_down() -> None:
    # By hand: 3 x 0.01, then 2 x 0.03; the last is raised to the one before.
    assert holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == []


def test_equivalence_is_two_one_sided_tests() -> None:
    summary = paired(SLEEP)
    for margin in (1.0, 2.0, 3.0):
        by_scipy = max(
            stats.ttest_1samp(SLEEP, -margin, alternative="greater").pvalue,
            stats.ttest_1samp(SLEEP, margin, alternative="less").pvalue,
        )
        assert equivalence_p_value(summary, margin) == pytest.approx(by_scipy)
    assert equivalence_p_value(paired([0.0, 0.0]), 0.5) == 0.0
    assert equivalence_p_value(paired([0.7, 0.7]), 0.5) == 1.0
    assert equivalence_p_value(paired([0.0]), 0.5) == 1.0


@pytest.mark.parametrize("num_pairs", [3, 5, 10])
def test_what_could_have_been_seen_is_seen_in_four_of_five(num_pairs: int) -> None:
    generator = np.random.default_rng(num_pairs)
    scale = np.array([-1.0, *np.zeros(num_pairs - 2), 1.0])
    scale /= scale.std(ddof=1)
    shift = detectable(paired(scale), 1)
    drawn = generator.normal(shift, 1.0, size=(4000, num_pairs))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    # 4,000 draws tell 80 % to 0.6 %; three times that.
    assert found.mean() == pytest.approx(0.8, abs=0.02)


def test_it_takes_more_to_be_seen_among_several() -> None:
    assert detectable(paired(SLEEP), 4) > detectable(paired(SLEEP), 1)


def test_intervals_by_t_hold_the_truth_and_those_by_bootstrap_too_rarely() -> None:
    generator = np.random.default_rng(0)
    summaries = [paired(generator.normal(size=SEEDS)) for _ in range(300)]
    by_t = [holds_zero(summary.interval) for summary in summaries]
    by_bootstrap = [holds_zero(summary.bootstrap_interval) for summary in summaries]
    # 300 draws tell 95 % to 1.3 %; three times that.
    assert np.mean(by_t) == pytest.approx(0.95, abs=0.04)
    # This is why verdicts do not use it. 82 %, to within three times 2 %.
    assert np.mean(by_bootstrap) == pytest.approx(0.82, abs=0.066)


def holds_zero(interval: tuple[float, float] | None) -> bool:
    return interval is not None and interval[0] <= 0 <= interval[1]


def verdict(speeds: Sequence[float], control: Sequence[float]) -> str:
    """Returns the kind of verdict that --mode=compare gives on these speeds."""
    logs = [math.log(a) - math.log(b) for a, b in zip(speeds, control, strict=True)]
    summary = paired(logs, with_bootstrap=False)
    assert summary.interval is not None
    entry = {
        "kind": "ratio",
        "num_pairs": summary.num_pairs,
        "estimate": math.exp(summary.mean),
        "deviation": summary.deviation,
        "interval": [math.exp(end) for end in summary.interval],
        "p_value_holm": summary.p_value,
        "detectable": math.exp(detectable(summary, 1)),
        "words": ("faster", "slower", "no detectable difference"),
        "equivalence": None,
        "reason": "",
    }
    return verdicts.verdict_of(entry)[0]


def fraction_different(
    blocks: Sequence[Block], arm: str, num_comparisons: int
) -> float:
    """Returns the fraction of comparisons with the control that find a difference."""
    generator = np.random.default_rng(2)
    num_different = 0
    for _ in range(num_comparisons):
        # No comparison has the same run twice, which would make it look more certain.
        drawn = generator.choice(len(blocks), size=SEEDS, replace=False)
        pairs = [(blocks[i][arm], blocks[i]["control"]) for i in drawn]
        # Which of two equal runs is called the control is up to chance.
        if arm == "again":
            pairs = [pair[::-1] if generator.integers(2) else pair for pair in pairs]
        speeds, control = zip(*pairs, strict=True)
        num_different += verdict(speeds, control) == verdicts.DIFFERENT
    return num_different / num_comparisons


def simulated_blocks(num_blocks: int) -> list[Block]:
    """Returns speeds that vary by 2 %, on a machine that drifts by 10 % over seeds."""
    generator = np.random.default_rng(0)
    machine = generator.normal(0.0, 0.1, size=(num_blocks, 1))
    runs = generator.normal(0.0, 0.02, size=(num_blocks, 3))
    speeds = 1000.0 * np.exp(machine + runs) / (1.0, 1.0, 1.1)
    arms = ("control", "again", "delayed")
    return [dict(zip(arms, row, strict=True)) for row in speeds.tolist()]


def recorded_blocks() -> list[Block]:
    """Returns the speeds of real runs on an idle machine."""
    path = ROOT / "benchmarks" / "results" / "2026-11-20_2x-xeon.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    return results["subjects"]["comparison-power"]["runs"]["blocks"]


@pytest.mark.parametrize("blocks", [simulated_blocks(500), recorded_blocks()])
def test_an_arm_is_not_told_from_itself_and_one_slower_by_a_tenth_is(
    blocks: list[Block],
) -> None:
    # 600 draws tell 5 % to 0.9 %, so that 8 % is three times that above it.
    assert fraction_different(blocks, "again", 600) <= 0.08
    assert fraction_different(blocks, "delayed", 600) >= 0.95


def test_a_verdict_is_on_the_speed_and_not_on_its_unit() -> None:
    control = [100.0, 110.0, 90.0, 105.0, 95.0]
    slower = [speed / 1.5 * math.exp(0.01 * i) for i, speed in enumerate(control)]
    assert verdict(slower, control) == verdicts.DIFFERENT
    assert verdict([7 * s for s in slower], [7 * s for s in control]) == "different"
    assert verdict(control, control[::-1]) == verdicts.UNDETECTED
