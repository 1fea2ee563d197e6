"""Tests of strategy.gradient_reduction=sum, which does not average gradients."""

import pytest

from tests.conformance.harness import LAYOUTS, Subject, same_training, small_config
from tests.conformance.test_same_training import TOLERANCES, assert_same_training
from tests.markers import chosen
from trainers.experiments.verify.arms import is_comparable

RATE = 0.02


# Strategies whose update is made from the gradients of all replicas.
SEVERAL = [(name, count) for name, count in same_training() if count in (2, 3)]


@pytest.mark.parametrize(("strategy", "replicas"), chosen(SEVERAL, [("mirrored", 3)]))
def test_with_sgd_it_is_a_rate_as_many_times_larger(
    strategy: str, replicas: int
) -> None:
    """This holds for a last batch too of which only one replica gets an example."""
    settings = {"model": "mlp", "dtype": "float64", "optimizer": "sgd"}
    summed = small_config(
        strategy=strategy,
        num_replicas=replicas,
        gradient_reduction="sum",
        learning_rate=RATE,
        **settings,
    )
    reference = small_config(learning_rate=RATE * replicas, **settings)
    outcome = Subject.of(summed).run(LAYOUTS["uneven"])
    expected = Subject.of(reference).run(LAYOUTS["uneven"])
    assert_same_training(outcome, expected, TOLERANCES["float64", "sgd"])
    # The sum is clipped and reported.
    assert outcome.gradient_norm == pytest.approx(
        replicas * expected.gradient_norm, rel=1e-12
    )


def test_it_is_not_taken_for_the_same_training() -> None:
    config = small_config(strategy="tower", num_replicas=2, gradient_reduction="sum")
    assert not config.strategy.traits.matches_one_device
    assert not is_comparable(config)
