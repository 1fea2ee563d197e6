"""Error rates of tests that are repeated after every seed."""

import numpy as np
import pytest
from scipy import stats

from tests.markers import further
from trainers.experiments.compare.sequential import Look, look_at

FIRST, LAST = 3, 10
# Another seed than that of the simulation that finds the levels.
RANDOM = np.random.default_rng(7)


def decided_at(shift: float, levels: list[float], num_trials: int) -> np.ndarray:
    """Returns the number of seeds at which each trial has decided; 0 if at none.

    Args:
      shift: Mean of the differences, in standard deviations.
      levels: Level of each look from `FIRST` seeds on.
      num_trials: Number of comparisons.
    """
    values = RANDOM.standard_normal([num_trials, FIRST + len(levels) - 1]) + shift
    found = np.zeros(num_trials, int)
    # From the last look to the first, so that the first decision stays.
    for look in reversed(range(len(levels))):
        seen = values[:, : FIRST + look]
        p_values = stats.ttest_1samp(seen, 0.0, axis=1).pvalue
        found[p_values < levels[look]] = FIRST + look
    return found


def ranges_of(ends: list[int]) -> list[tuple[int, int]]:
    firsts = [FIRST, *(end + 1 for end in ends[:-1])]
    return list(zip(firsts, ends, strict=True))


def planned(ends: list[int], sides: int = 2) -> list[float]:
    return [
        look_at(n, ranges_of(ends)).level(0.05, sides)
        for n in range(FIRST, ends[-1] + 1)
    ]


def lower_bound(num_wrong: int, num_trials: int) -> float:
    """Returns the lower end of the 99 % interval of a rate, by Wilson."""
    test = stats.binomtest(num_wrong, num_trials)
    return test.proportion_ci(0.99, method="wilson").low


def test_looking_after_every_seed_at_5_percent_is_wrong_too_often() -> None:
    wrong = decided_at(0.0, [0.05] * 8, 10_000)
    assert (wrong > 0).mean() > 0.15


# The last plan has the others in it.
@pytest.mark.parametrize("ends", [*map(further, ([10], [5], [10, 20])), [5, 10, 20]])
def test_equal_arms_are_called_different_in_at_most_5_percent(ends: list[int]) -> None:
    wrong = decided_at(0.0, planned(ends), 20_000) > 0
    # Only what cannot be chance counts against the level.
    assert lower_bound(int(wrong.sum()), len(wrong)) <= 0.05


def test_a_plan_uses_most_of_its_error_rate() -> None:
    wrong = decided_at(0.0, planned([10]), 20_000) > 0
    assert wrong.mean() > 0.04


def test_one_level_for_3_to_10_seeds() -> None:
    # By another simulation, of 200,000 paths, known to 2 %.
    level = Look(3, 10).level(0.05, 2)
    assert level == pytest.approx(0.0118, rel=0.05)


@pytest.mark.parametrize(("num_seeds", "part"), [(5, 0.9), (8, 0.05), (20, 0.025)])
def test_an_adjusted_p_value_is_the_rate_of_its_own_level(
    num_seeds: int, part: float
) -> None:
    look = look_at(num_seeds, ranges_of([5, 10, 20]))
    for rate in (0.01, 0.05, 0.3):
        level = look.level(rate, 2)
        # One path more or less beyond the level.
        off = 2 / (500_000 * part * rate)
        adjusted = look.adjusted_p_value(level, 2)
        assert adjusted == pytest.approx(rate, rel=off)


def test_a_single_look_has_the_p_value_of_its_only_test() -> None:
    for p_value in (0.0, 1e-9, 0.04, 1.0):
        assert Look(5, 5).adjusted_p_value(p_value, 2) == p_value
    assert Look(5, 5).level(0.05, 2) == 0.05
    # The tenth that is kept for added seeds.
    planned = look_at(5, [(5, 5)])
    assert planned.adjusted_p_value(0.01, 2) == pytest.approx(0.01 / 0.9)
    assert planned.level(0.05, 2) == pytest.approx(0.045)


@pytest.mark.parametrize(
    ("shift", "seeds", "power"), [(3, 4.25, 0.999), (2, 5.4, 0.99)]
)
def test_large_differences_are_decided_soon(
    shift: float, seeds: float, power: float
) -> None:
    decided = decided_at(shift, planned([10]), 5_000)
    assert (decided > 0).mean() >= power
    assert np.where(decided, decided, LAST).mean() <= seeds


@pytest.mark.parametrize("shift", [1.0, 1.5, 2.0, 3.0, 4.0])
def test_it_takes_little_more_seeds_than_the_best_fixed_number(shift: float) -> None:
    decided = decided_at(shift, planned([LAST]), 5_000)
    power = (decided > 0).mean()
    # The number of seeds that has this power, unknown before the runs.
    best = next(n for n in range(FIRST, 100) if power_of(shift, n) >= power)
    assert np.where(decided, decided, LAST).mean() <= 1.35 * best


def power_of(shift: float, num_seeds: int) -> float:
    """Returns the power of one t test at 5 %, for a shift in standard deviations."""
    critical = stats.t.ppf(0.975, num_seeds - 1)
    power: float = stats.nct.sf(critical, num_seeds - 1, shift * np.sqrt(num_seeds))
    return power


def test_equivalence_is_wrong_in_at_most_5_percent() -> None:
    """The mean lies on the margin, the smallest difference that counts."""
    levels = planned([LAST], sides=1)
    margin, num_trials = 4.0, 20_000
    values = RANDOM.standard_normal([num_trials, LAST]) + margin
    wrong = np.zeros(num_trials, bool)
    for look, level in enumerate(levels):
        seen = values[:, : FIRST + look]
        error = seen.std(axis=1, ddof=1) / np.sqrt(seen.shape[1])
        distance = (margin - np.abs(seen.mean(axis=1))) / error
        wrong |= stats.t.sf(distance, seen.shape[1] - 1) < level
    assert lower_bound(int(wrong.sum()), num_trials) <= 0.05


def test_there_is_no_look_outside_of_the_plan() -> None:
    for num_seeds in (2, 11):
        with pytest.raises(ValueError, match="no look"):
            look_at(num_seeds, [(FIRST, LAST)])
