"""Moving statistics are those of the whole global batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from strategies import discovery
from tests.conformance.custom import assemble_custom, train
from tests.conformance.harness import (
    alone_and_uneven,
    same_training,
    subjects,
    uneven,
)
from tests.further import chosen
from trainers.assembly import Assembly

NUM_STEPS = 5
# 26 = 3 x 8 + 2: the last batch leaves one of three replicas without an example.
NUM_EXAMPLES = 26
FEATURES = np.random.default_rng(0).normal(3, 2, (NUM_EXAMPLES, 6)).astype(np.float32)


def normalized(strategy: str, replicas: int, **layer_settings: bool) -> Assembly:
    return assemble_custom(
        strategy,
        replicas,
        lambda: [
            keras.layers.BatchNormalization(momentum=0.9, **layer_settings),
            keras.layers.Dense(3),
        ],
        FEATURES,
        global_batch_size=8,
        optimizer="sgd",
        learning_rate=0.05,
        dtype="float64",
    )


def moving_statistics(assembly: Assembly) -> tuple[np.ndarray, np.ndarray]:
    layer = assembly.model.layers[0]
    return layer.moving_mean.numpy(), layer.moving_variance.numpy()


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    chosen(alone_and_uneven(same_training()), uneven(same_training())),
)
def test_moving_statistics_equal_those_of_one_device(
    strategy: str, replicas: int
) -> None:
    """Double precision; the bound leaves room for (m - old) / (1 - momentum)."""
    expected, assembly = normalized("one_device", 1), normalized(strategy, replicas)
    train(expected, NUM_STEPS)
    train(assembly, NUM_STEPS)
    for got, want in zip(
        moving_statistics(assembly), moving_statistics(expected), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_moving_statistics_follow_the_definition() -> None:
    """The control itself, against batches averaged by hand."""
    assembly = normalized("one_device", 1)
    mean, variance = np.zeros(6), np.ones(6)
    batches = iter(assembly.batches(0).dataset(0, 1))
    for _ in range(NUM_STEPS):
        rows = FEATURES[next(batches).indices.numpy()].astype(np.float64)
        mean = 0.9 * mean + 0.1 * rows.mean(axis=0)
        variance = 0.9 * variance + 0.1 * rows.var(axis=0)
    train(assembly, NUM_STEPS)
    got_mean, got_variance = moving_statistics(assembly)
    np.testing.assert_allclose(got_mean, mean, rtol=1e-12)
    np.testing.assert_allclose(got_variance, variance, rtol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "replicas"), chosen(alone_and_uneven(subjects()), uneven(subjects()))
)
def test_an_empty_share_gives_no_nan(strategy: str, replicas: int) -> None:
    assembly = normalized(strategy, replicas)
    sums = train(assembly, NUM_STEPS)
    assert sums["examples"].tolist() == [8, 8, 8, 2, 8]
    for values in [*sums.values(), *(w.numpy() for w in assembly.model.weights)]:
        assert np.isfinite(values).all()


SYNCHRONIZED = [s for s in same_training() if s[0] == "mirrored"]


@pytest.mark.parametrize(("strategy", "replicas"), SYNCHRONIZED)
def test_synchronized_normalization_is_the_same_training(
    strategy: str, replicas: int
) -> None:
    """`synchronized=True` needs tf.distribute, which only mirrored is made of.

    Even batches only: the stand-in row of an empty share would count in Keras's
    own sum over replicas.
    """
    assert discovery.traits(strategy).matches_one_device
    expected = normalized("one_device", 1)
    assembly = normalized(strategy, replicas, synchronized=True)
    want, got = train(expected, 3), train(assembly, 3)
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-12)
    for weight, reference in zip(
        assembly.model.weights, expected.model.weights, strict=True
    ):
        # A gradient that is zero but for rounding leaves beta at about 1e-17.
        np.testing.assert_allclose(
            weight.numpy(), reference.numpy(), rtol=1e-10, atol=1e-15
        )
