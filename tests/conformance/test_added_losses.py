"""Checks that losses that layers add count once, with any number of replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.custom import assemble_custom, train
from tests.conformance.harness import alone_and_uneven, same_training
from tests.markers import chosen
from trainers.loop.parts import TrainingParts

# 10 = 8 + 2: the second batch of an epoch is too small for three replicas. The factors
# below are exact in binary, because Keras keeps them in single precision.
FEATURES = np.random.default_rng(1).normal(size=(10, 5))
NUM_STEPS = 6


class MeanPenalty(keras.layers.Layer):
    """A layer that adds the mean of its input's squares, as users' layers do."""

    def __init__(self, axis: int | None = None):
        super().__init__()
        self.axis = axis

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.5 * keras.ops.mean(keras.ops.square(inputs), self.axis))
        return inputs


def penalized(strategy: str, replicas: int, axis: int | None = None) -> TrainingParts:
    return assemble_custom(
        strategy,
        replicas,
        lambda: [
            keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.25)),
            MeanPenalty(axis),
            keras.layers.Dense(2, activity_regularizer=keras.regularizers.L2(0.125)),
        ],
        FEATURES.astype(np.float32),
        global_batch_size=8,
        optimizer="sgd",
        learning_rate=0.1,
        dtype="float64",
    )


# In stages, one replica has the penalties of several devices.
@pytest.mark.parametrize(
    ("strategy", "replicas"),
    chosen(alone_and_uneven(same_training()), [("mirrored", 3), ("model_parallel", 1)]),
)
def test_added_losses_are_the_same_training(strategy: str, replicas: int) -> None:
    expected, assembly = penalized("one_device", 1), penalized(strategy, replicas)
    want, got = train(expected, NUM_STEPS), train(assembly, NUM_STEPS)
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-12)
    for weight, reference in zip(
        assembly.model.weights, expected.model.weights, strict=True
    ):
        np.testing.assert_allclose(
            weight.numpy(), reference.numpy(), rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize("axis", [None, -1], ids=["of a batch", "of each example"])
def test_the_penalties_are_in_the_loss(axis: int | None) -> None:
    """Compares one device itself with its first batch, computed by hand."""
    assembly = penalized("one_device", 1, axis)
    batch = next(iter(assembly.batches(0).dataset(0, 1)))
    first, _, second = assembly.model.layers
    rows = tf.cast(batch.features, tf.float64)
    hidden = rows @ first.kernel.numpy()
    outputs = hidden @ second.kernel.numpy()
    expected = (
        np.mean(np.square(outputs))
        + 0.25 * np.sum(np.square(first.kernel.numpy()))
        + 0.5 * np.sum(np.mean(np.square(hidden), axis))
        + 0.125 * np.sum(np.square(outputs)) / len(rows)
    )
    sums = train(assembly, 1)
    assert sums["loss"][0] / sums["examples"][0] == pytest.approx(expected, rel=1e-12)
