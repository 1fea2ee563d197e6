"""Accuracies are counts: equal arms must rarely be called different."""

import pathlib

import numpy as np

from trainers.config.comparison import ComparisonConfig
from trainers.experiments.compare import verdicts
from trainers.experiments.compare.comparisons import ACCURACY, compare_with_control
from trainers.experiments.compare.sequential import Look
from trainers.experiments.run_record import Run

NUM_ARMS, NUM_SEEDS, HELD_OUT = 8, 3, 100


def comparison(counts: np.ndarray) -> bool:
    """Returns whether an arm is called different: counts [arms, seeds]."""
    by_arm = {
        str(arm): [
            Run(
                arm=str(arm),
                seed=seed,
                path=pathlib.Path(),
                status="completed",
                result={
                    "final": {"eval_accuracy": count / HELD_OUT},
                    "eval_examples": HELD_OUT,
                },
            )
            for seed, count in enumerate(of_seeds)
        ]
        for arm, of_seeds in enumerate(counts.tolist())
    }
    look = Look(NUM_SEEDS, NUM_SEEDS, 1.0)
    entries = compare_with_control(
        by_arm, "0", [ACCURACY], ComparisonConfig(), look, with_bootstrap=False
    )
    return any(entry["verdict"]["kind"] == verdicts.DIFFERENT for entry in entries)


def test_equal_arms_are_called_different_in_at_most_5_percent() -> None:
    """The deviation includes the rounding of counts; without it 10 % were."""
    drawn = np.random.default_rng(0).binomial(
        HELD_OUT, 0.97, (400, 1 + NUM_ARMS, NUM_SEEDS)
    )
    # 400 draws tell 5 % to 1.1 %.
    assert np.mean(list(map(comparison, drawn))) <= 0.05


def test_a_large_difference_of_equal_size_is_seen() -> None:
    counts = np.tile([[90], [95]], NUM_SEEDS)
    assert comparison(counts)
