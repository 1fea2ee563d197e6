"""Stopping of a comparison, on recorded runs and on runs made by hand."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import rich.console
from scipy import stats

from strategies.common.console import Console
from tests.trainers.experiments.compare.test_statistics import Block, recorded_blocks
from trainers.config.comparison import ComparisonConfig
from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.compare.progress import Progress, look_lines
from trainers.experiments.compare.schedule import schedule
from trainers.experiments.compare.sequential import look_at
from trainers.experiments.compare.stopping import State, arms_to_drop, state_at
from trainers.experiments.run_record import Run

FIRST, LAST = 3, 10
LOOKS = [(FIRST, LAST)]
SETTINGS = ComparisonConfig(seeds=LAST, fewest_seeds=FIRST)


def run_of(arm: str, seed: int, speed: float, accuracy: float | None = None) -> Run:
    return Run(
        arm=arm,
        seed=seed,
        path=pathlib.Path("unused"),
        status="completed",
        result={
            "throughput": {"examples_per_second": speed},
            "final": {"eval_accuracy": accuracy},
        },
    )


def runs_of(
    speeds: Mapping[str, Sequence[float]], num_seeds: int
) -> dict[str, list[Run]]:
    return {
        arm: [run_of(arm, seed, speed) for seed, speed in enumerate(values[:num_seeds])]
        for arm, values in speeds.items()
    }


def state_after(num_seeds: int, by_arm: Mapping[str, Sequence[Run]]) -> State:
    look = look_at(num_seeds, LOOKS)
    return state_at(num_seeds, by_arm, "control", SETTINGS, look, ())


def ends_of(
    blocks: list[Block], arm: str, num_trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns after how many seeds each trial stops, and whether by a difference."""
    generator = np.random.default_rng(3)
    num_seeds, differences = [], []
    for _ in range(num_trials):
        drawn = generator.choice(len(blocks), size=LAST, replace=False)
        pairs = [(blocks[i]["control"], blocks[i][arm]) for i in drawn]
        # Which of two equal runs is called the control is up to chance.
        if arm == "again":
            pairs = [pair[::-1] if generator.integers(2) else pair for pair in pairs]
        control, other = zip(*pairs, strict=True)
        for count in range(FIRST, LAST + 1):
            by_arm = runs_of({"control": control, arm: other}, count)
            if state_after(count, by_arm).is_decided:
                break
        num_seeds.append(count)
        differences.append(bool(losses_of(count, by_arm)))
    return np.array(num_seeds), np.array(differences)


def losses_of(num_seeds: int, by_arm: Mapping[str, Sequence[Run]]) -> list[str]:
    look = look_at(num_seeds, LOOKS)
    # Without a control, either of two arms can be shown to be slower.
    found = arms_to_drop(num_seeds, by_arm, None, SETTINGS, look, ())
    return [loss.arm for loss in found]


TRIALS = [pytest.param(200), pytest.param(2000, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("num_trials", TRIALS)
def test_recorded_runs_of_equal_arms_stop_soon_as_equivalent(num_trials: int) -> None:
    num_seeds, is_different = ends_of(recorded_blocks(), "again", num_trials)
    rate = stats.binomtest(int(is_different.sum()), num_trials)
    # Only what cannot be chance counts against the level.
    assert rate.proportion_ci(0.99, method="wilson").low <= 0.05
    assert np.median(num_seeds) <= 6


@pytest.mark.parametrize("num_trials", TRIALS)
def test_a_recorded_tenth_is_found_in_little_more_than_four_seeds(
    num_trials: int,
) -> None:
    num_seeds, is_different = ends_of(recorded_blocks(), "delayed", num_trials)
    assert is_different.mean() >= 0.99
    assert num_seeds.mean() <= 4.2


def test_a_state_says_what_is_undecided_and_for_how_long() -> None:
    control = [100.0, 102.0, 99.0]
    by_arm = runs_of(
        {
            "control": control,
            "twice": [2 * speed * (1 + i / 500) for i, speed in enumerate(control)],
            "near": [93.0, 99.0, 96.0],
        },
        3,
    )
    state = state_after(3, by_arm)
    assert not state.is_decided
    assert state.undecided == {"near": ["speed"]}
    assert state.num_verdicts == 1
    assert 3 < state.probable_num_seeds <= LAST


def test_what_will_probably_be_undecided_takes_all_seeds() -> None:
    by_arm = runs_of({"control": [100.0] * 3, "noisy": [50.0, 200.0, 101.0]}, 3)
    assert state_after(3, by_arm).probable_num_seeds == LAST


def test_no_seeds_are_expected_after_the_last_look() -> None:
    speeds = [50.0, 200.0, 101.0] * LAST
    by_arm = runs_of({"control": [100.0] * LAST, "noisy": speeds[:LAST]}, LAST)
    state = state_after(LAST, by_arm)
    assert not state.is_decided
    assert state.probable_num_seeds == LAST
    assert "probably" not in look_lines(state)[0]


def test_a_warm_up_is_a_line_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All warm-ups come before the first run, which is a wait of minutes."""
    progress = Progress(Console())
    turns = schedule([Arm(name="tower", config=Config())], [0])
    progress.expect(turns)
    progress.begun(turns[0])
    progress.ended(turns[0], None)
    assert capsys.readouterr().out == "run   1/2 | tower, warm-up | 0 s\n"


@pytest.mark.parametrize("num_arms", [1, 2, 3, 5])
@pytest.mark.parametrize("first_seed", [0, 1, 7])
def test_each_arm_has_each_place_equally_often(num_arms: int, first_seed: int) -> None:
    arms = [Arm(name=str(index), config=Config()) for index in range(num_arms)]
    seeds = range(first_seed, first_seed + num_arms)
    turns = [t for t in schedule(arms, seeds) if t.seed is not None]
    names = np.array([turn.arm.name for turn in turns]).reshape(-1, num_arms)
    for place in names.T:
        assert list(np.unique(place, return_counts=True)[1]) == [1] * num_arms
    # More seeds do not change the order of earlier ones.
    assert list(names[0]) == [
        turn.arm.name for turn in schedule(arms, [first_seed])[num_arms:]
    ]


def test_a_terminal_of_80_columns_shows_the_state_of_20_seeds() -> None:
    progress = Progress(Console())
    arms = [Arm(name=name, config=Config()) for name in ("tower-async", "one_device")]
    turns = schedule(arms, range(20))
    progress.expect(turns)
    for turn in turns[:-1]:
        progress.begun(turn)
        progress.ended(turn, None)
    progress.begun(turns[-1])
    terminal = rich.console.Console(width=80)
    with terminal.capture() as shown:
        terminal.print(progress.table())
    words = shown.get().split()
    *done, last = map(str, range(20))
    assert " ".join(["one_device", "done", "done", *done, last]) in " ".join(words)
    assert " ".join(["done", *done[:-1], f"{done[-1]},", "running", last]) in " ".join(
        words
    )


def test_accuracy_has_to_be_decided_as_well() -> None:
    by_arm = {
        "control": [run_of("control", i, 100 + i, 0.9) for i in range(3)],
        "twice": [
            run_of("twice", i, 200.5 + 2 * i, accuracy)
            for i, accuracy in enumerate((0.93, 0.88, 0.9))
        ],
    }
    assert state_after(3, by_arm).undecided == {"twice": ["accuracy"]}
    by_arm["twice"] = [run_of("twice", i, 200.5 + 2 * i, 0.9) for i in range(3)]
    assert state_after(3, by_arm).is_decided


def test_an_arm_without_a_run_is_not_waited_for() -> None:
    failed = [
        Run(arm="failed", seed=seed, path=pathlib.Path("unused"), status="failed")
        for seed in range(3)
    ]
    by_arm = runs_of({"control": [100.0, 101.0, 99.0]}, 3)
    assert state_after(3, {**by_arm, "failed": failed}).is_decided


def test_arms_that_are_slower_than_another_are_dropped_but_for_the_control() -> None:
    noise = (1.0, 1.001, 0.999)
    speeds = {"control": 50.0, "fast": 100.0, "slow": 70.0, "near": 99.9}
    by_arm = runs_of({arm: [s * n for n in noise] for arm, s in speeds.items()}, 3)
    by_arm["near"] = [run_of("near", i, s) for i, s in enumerate((98.0, 103.0, 99.0))]
    look = look_at(3, LOOKS)
    (dropped,) = arms_to_drop(3, by_arm, "control", SETTINGS, look, ())
    assert (dropped.arm, dropped.faster) == ("slow", "fast")
    assert dropped.in_words() == (
        "slow was dropped after 3 seeds: fast is faster by 1.43x."
    )
    assert arms_to_drop(3, by_arm, "control", SETTINGS, look, {"slow"}) == []
    assert "control" in losses_of(3, by_arm)
