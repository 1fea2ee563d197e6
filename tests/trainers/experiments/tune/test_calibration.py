"""The search against an exhaustive grid, on losses as recorded runs have them.

curves.json has losses and accuracies of 120 real runs, and the command that made them.
Each trial draws the losses of a search, and accuracies of seeds that it has not seen.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from tests.trainers.experiments.compare.test_stopping import run_of
from trainers.config.comparison import ComparisonConfig
from trainers.experiments.compare.comparisons import RunsByArm, compare_with_control
from trainers.experiments.compare.sequential import Look
from trainers.experiments.tune.halving import Trial, halve, value_for_all, with_given
from trainers.experiments.tune.tuning import Rung, Tuning

RECORDED = json.loads(
    pathlib.Path(__file__).with_name("curves.json").read_text("utf-8")
)
VALUES = tuple(float(value) for value in RECORDED["arms"]["one_device"])
STEPS = RECORDED["steps"]
TUNING = Tuning(
    setting="learning_rate",
    values=VALUES,
    asked_runs=len(VALUES),
    train_steps=STEPS[-1],
    seed=0,
)
# Rates that are right for the control, and far too high for an arm whose largest stable
# rate is seven times lower: two values of the grid.
GIVEN = VALUES.index(0.0139)
SHIFT = 2
# A final loss and that of half of the steps, with the same seed: between -0.1 and 0.9
# in the recorded runs.
CORRELATION = 0.5


@dataclasses.dataclass(frozen=True)
class Curves:
    """Loss and accuracy of an arm.

    Attributes:
      loss: mean logarithm of the loss, by value and number of steps.
      loss_deviation: its standard deviation over runs.
      accuracy: mean accuracy at the end, by value.
      accuracy_deviation: its standard deviation over runs.
    """

    loss: np.ndarray
    loss_deviation: np.ndarray
    accuracy: np.ndarray
    accuracy_deviation: np.ndarray

    def shifted(self, places: int) -> Curves:
        """Returns the curves with lower rates, and the same quality at the best."""
        moved = [
            np.concatenate([each[places:], np.repeat(each[-1:], places, axis=0)])
            for each in dataclasses.astuple(self)
        ]
        return Curves(*moved)

    def worse(self, accuracy: float) -> Curves:
        """Returns the curves with less accuracy wherever an arm learns anything.

        With rates that are too high, arms are equal: a search that prefers them finds
        no difference.
        """
        less = np.where(self.accuracy > 0.5, self.accuracy - accuracy, self.accuracy)
        return dataclasses.replace(self, accuracy=less)


def recorded(*names: str) -> Curves:
    runs = [
        [run for name in names for run in RECORDED["arms"][name].get(value, ())]
        for value in RECORDED["arms"]["one_device"]
    ]
    losses = [np.log([loss for loss, _ in each]) for each in runs]
    accuracies = [np.array([accuracy for _, accuracy in each]) for each in runs]
    return Curves(
        np.array([each.mean(0) for each in losses]),
        np.array([each.std(0, ddof=1) for each in losses]),
        np.array([each.mean() for each in accuracies]),
        np.array([each.std(ddof=1) for each in accuracies]),
    )


ONE = recorded("one_device")
ASYNC = recorded("async", "again")
SHIFTED = ONE.shifted(SHIFT)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Verdicts of one trial: the sign of a difference, or 0 for none.

    Attributes:
      search: Verdict of the search.
      grid: Verdict of whole runs of all values.
      given: Verdict of runs with the given value.
    """

    search: int
    grid: int
    given: int


def sign_of_verdict(control: np.ndarray, other: np.ndarray) -> int:
    by_arm: RunsByArm = {
        name: [run_of(name, seed, 1.0, float(a)) for seed, a in enumerate(accuracies)]
        for name, accuracies in (("control", control), ("other", other))
    }
    look = Look(len(control), len(control))
    (entry,) = compare_with_control(
        by_arm,
        "control",
        ["eval_accuracy"],
        ComparisonConfig(),
        look,
        with_bootstrap=False,
    )
    is_different = entry["verdict"]["kind"] == "different"
    return int(np.sign(entry["estimate"])) if is_different else 0


def searched(losses: Sequence[np.ndarray]) -> tuple[list[int], int]:
    """Returns the values that arms get from a search, and its steps in all."""
    steps_run = 0
    arms, chosen = [], []
    for loss in losses:

        def measure(value: float, steps: int, loss: np.ndarray = loss) -> float:
            nonlocal steps_run
            steps_run += steps
            return float(loss[VALUES.index(value), STEPS.index(steps)])

        trials, best = halve(
            VALUES, TUNING.rungs, measure, lambda v: TUNING.distance(v, VALUES[GIVEN])
        )
        assert best is not None
        arms.append(trials)
        chosen.append(best.value)
    shared = value_for_all(arms, TUNING.rungs[-1].steps)
    chosen = chosen if shared is None else [shared] * len(chosen)
    return [VALUES.index(value) for value in chosen], steps_run


def trials_of(
    arms: Sequence[Curves], num_trials: int, num_seeds: int = 5
) -> list[Outcome]:
    generator = np.random.default_rng(22)
    outcomes = []
    for _ in range(num_trials):
        losses, accuracies = [], []
        for arm in arms:
            noise = generator.normal(size=arm.loss.shape)
            noise[:, -1] *= np.sqrt(1 - CORRELATION**2)
            noise[:, -1] += CORRELATION * noise[:, -2]
            losses.append(np.exp(arm.loss + arm.loss_deviation * noise))
            noise = generator.normal(size=(len(VALUES), num_seeds))
            drawn = arm.accuracy[:, None] + arm.accuracy_deviation[:, None] * noise
            accuracies.append(np.clip(drawn, 0, 1))
        found, steps = searched(losses)
        assert steps <= 0.4 * len(arms) * TUNING.grid_steps
        grid = [int(loss[:, -1].argmin()) for loss in losses]
        signs = [
            sign_of_verdict(accuracies[0][first], accuracies[1][second])
            for first, second in (found, grid, (GIVEN, GIVEN))
        ]
        outcomes.append(Outcome(*signs))
    return outcomes


TRIALS = [pytest.param(20), pytest.param(1000, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("num_trials", TRIALS)
@pytest.mark.parametrize("loss", [ASYNC.loss, SHIFTED.loss], ids=["same", "lower"])
def test_where_arms_differ_the_verdict_is_that_of_an_exhaustive_grid(
    num_trials: int, loss: np.ndarray
) -> None:
    """An arm that loses two points of accuracy at its best rate."""
    other = (ASYNC if loss is ASYNC.loss else SHIFTED).worse(0.02)
    outcomes = trials_of((ONE, other), num_trials)
    same = sum(each.search == each.grid for each in outcomes)
    assert same >= 0.95 * num_trials
    assert sum(each.search == -1 for each in outcomes) >= 0.95 * num_trials


def test_a_difference_that_is_only_tuning_is_found_without_a_search() -> None:
    """And so the next test shows something: the rate is wrong for one of the arms."""
    outcomes = trials_of((ONE, SHIFTED), 20)
    assert all(each.given == -1 for each in outcomes)


LONG = (pytest.mark.exhaustive, pytest.mark.slow)
EQUAL = {"one": (ONE, ONE), "async": (ASYNC, ASYNC), "wrong rate": (ONE, SHIFTED)}


@pytest.mark.parametrize("num_trials", [200, pytest.param(3000, marks=LONG)])
@pytest.mark.parametrize("name", EQUAL)
def test_equal_arms_are_called_different_in_five_of_a_hundred(
    name: str, num_trials: int
) -> None:
    outcomes = trials_of(EQUAL[name], num_trials)
    assert_no_more_than_the_level(outcomes)
    # Whole runs of all values choose by noise as well, and each arm for itself.
    wrong = [sum(each.search != 0 for each in outcomes)]
    wrong.append(sum(each.grid != 0 for each in outcomes))
    assert wrong[0] < wrong[1]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["one", "async"])
def test_more_seeds_find_no_more_differences_between_equal_arms(name: str) -> None:
    assert_no_more_than_the_level(trials_of(EQUAL[name], 3000, num_seeds=10))


def assert_no_more_than_the_level(outcomes: Sequence[Outcome]) -> None:
    wrong = sum(each.search != 0 for each in outcomes)
    rate = stats.binomtest(wrong, len(outcomes))
    interval = rate.proportion_ci(0.99, method="wilson")
    # Only what cannot be chance counts against the level.
    assert interval.low <= 0.05, f"{wrong} of {len(outcomes)}: {interval}"


def test_arms_with_different_best_values_keep_them() -> None:
    low = [Trial(0.01, {8: 0.1}), Trial(0.1, {8: 0.9})]
    high = [Trial(0.01, {8: 0.9}), Trial(0.1, {8: 0.1})]
    assert value_for_all([low, high], 8) is None
    near = [Trial(0.01, {8: 0.14}), Trial(0.1, {8: 0.1})]
    assert value_for_all([low, near], 8) == 0.01
    assert value_for_all([low, [Trial(0.1, {8: 0.1})]], 8) is None
    # Losses may be negative: a rate is as good up to half of the lowest loss above it.
    first = [Trial(0.001, {8: -10.0}), Trial(0.01, {8: -9.99}), Trial(1.0, {8: -4.0})]
    second = [Trial(0.001, {8: -9.9}), Trial(0.01, {8: -10.01}), Trial(1.0, {8: -9.0})]
    assert value_for_all([first, second], 8) == 0.01
    assert value_for_all([first, [Trial(1.0, {8: -9.0})]], 8) is None


def test_a_run_that_did_not_complete_loses_and_ties_go_to_the_nearer() -> None:
    losses = {1.0: 0.5, 2.0: None, 4.0: 0.5, 8.0: 0.7}
    rungs = [Rung(4, 10), Rung(2, 20)]
    for distances, expected in (({1.0: 0, 4.0: 3}, 1.0), ({1.0: 3, 4.0: 0}, 4.0)):
        trials, best = halve(
            [*losses],
            rungs,
            lambda value, steps: losses[value],
            functools.partial({8.0: 9, **distances}.__getitem__),
        )
        assert best is not None
        assert best.value == expected
        assert [len(trial.losses) for trial in trials] == [2, 1, 2, 1]
    nothing = halve([1.0, 2.0], [Rung(2, 5)], lambda *_: None, lambda value: 0.0)
    assert nothing[1] is None


@pytest.mark.parametrize(
    ("given", "loss", "values", "best"),
    [
        (0.3, 0.4, [0.1, 0.3, 1.0], 0.3),
        # The nearest of equal ones.
        (0.3, 0.5, [0.1, 0.3, 1.0], 0.3),
        (0.3, 0.6, [0.1, 0.3, 1.0], 0.1),
        (0.3, None, [0.1, 1.0], 0.1),
        # Tried, and passed over after the short runs.
        (1.0, 0.4, [0.1, 1.0], 1.0),
        (0.1, 0.5, [0.1, 1.0], 0.1),
    ],
)
def test_the_given_value_competes_after_the_longest_runs(
    given: float, loss: float | None, values: list[float], best: float
) -> None:
    trials = [Trial(0.1, {4: 0.9, 8: 0.5}), Trial(1.0, {4: 2.0})]
    all_trials, found = with_given(trials, trials[0], given, 8, loss)
    assert [trial.value for trial in all_trials] == values
    assert found is not None
    assert found.value == best
    assert found.losses[8] == (loss if best == given else 0.5)


def test_the_given_value_is_the_best_if_all_others_diverge() -> None:
    _, found = with_given([Trial(9.0, {4: None})], None, 0.1, 8, 0.5)
    assert found == Trial(0.1, {8: 0.5})


@pytest.mark.parametrize(
    ("num_values", "expected"),
    [
        (2, [(2, 500)]),
        (3, [(3, 250), (2, 500)]),
        (4, [(4, 250), (2, 500)]),
        (8, [(8, 125), (4, 250), (2, 500)]),
        (9, [(9, 62), (5, 125), (3, 250), (2, 500)]),
    ],
)
def test_each_rung_has_half_of_the_values_and_twice_the_steps(
    num_values: int, expected: list[tuple[int, int]]
) -> None:
    values = tuple(range(1, num_values + 1))
    tuning = dataclasses.replace(TUNING, values=values, train_steps=1000)
    assert [(rung.num_values, rung.steps) for rung in tuning.rungs] == expected
