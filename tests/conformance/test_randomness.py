"""Checks that dropout is a function of seed, step and replica."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.objective import PerExample
from tests.conformance.custom import assemble_custom, train
from tests.conformance.harness import subjects
from tests.markers import chosen

WIDTH = 32
NUM_STEPS = 4
# Each draw traces a new model, and three replicas show nothing that two and four do
# not show.
SEVERAL_REPLICAS = [s for s in subjects() if s[1] in (2, 4)]
TWO_REPLICAS = [s for s in SEVERAL_REPLICAS if s[1] == 2]
ONE_OR_TWO_REPLICAS = [s for s in subjects() if s[1] in (1, 2)]


@functools.cache
def masks(
    strategy: str, replicas: int, seed: int = 0, rerun: bool = False
) -> np.ndarray:
    """Returns the dropout mask of each step and replica as a number, [steps, replicas].

    Every example is a row of ones, and every replica gets one example, so that the
    output for an example is the mask of its replica. A rerun is a run that is cached
    apart from the first one.
    """

    def mask_of(example: int) -> PerExample:
        def metric(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            bits = tf.cast(outputs != 0, tf.float64)
            number = tf.reduce_sum(bits * 2.0 ** np.arange(WIDTH), axis=1)
            return tf.where(labels == example, number, 0)

        return metric

    assembly = assemble_custom(
        strategy,
        replicas,
        # The second layer only gives the optimizer something to train.
        lambda: [
            keras.layers.Dropout(0.5),
            keras.layers.EinsumDense("bi,i->bi", WIDTH, kernel_initializer="ones"),
        ],
        np.ones([replicas, WIDTH], np.float32),
        metrics={f"mask_{i}": mask_of(i) for i in range(replicas)},
        global_batch_size=replicas,
        learning_rate=1e-30,
        optimizer="sgd",
        seed=seed,
    )
    sums = train(assembly, NUM_STEPS)
    return np.stack([sums[f"mask_{i}"] for i in range(replicas)], axis=1)


@pytest.mark.parametrize(
    ("strategy", "replicas"), chosen(SEVERAL_REPLICAS, TWO_REPLICAS)
)
def test_replicas_get_different_masks_in_every_step(
    strategy: str, replicas: int
) -> None:
    drawn = masks(strategy, replicas)
    assert drawn.shape == (NUM_STEPS, replicas)
    assert len(np.unique(drawn)) == drawn.size


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    chosen(ONE_OR_TWO_REPLICAS, [("mirrored", 2)]),
)
def test_a_rerun_gets_the_same_masks_and_another_seed_others(
    strategy: str, replicas: int
) -> None:
    drawn = masks(strategy, replicas)
    np.testing.assert_array_equal(drawn, masks(strategy, replicas, rerun=True))
    assert not np.intersect1d(drawn, masks(strategy, replicas, seed=1)).size


def test_strategies_draw_the_same_masks() -> None:
    of_two = [strategy for strategy, _ in TWO_REPLICAS]
    assert {"mirrored", "tower"} <= set(of_two)
    drawn = {strategy: np.sort(masks(strategy, 2)) for strategy in of_two}
    for strategy, found in drawn.items():
        np.testing.assert_array_equal(found, drawn["tower"], err_msg=strategy)


class Noise(keras.layers.GaussianNoise):
    """Noise in evaluations, too, as in the samples of a variational autoencoder."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return super().call(inputs, training=True)


def test_each_batch_and_replica_of_an_evaluation_draws_other_numbers() -> None:
    """Two batches of two replicas have one example each, and its noise as output."""

    def output_of(example: int) -> PerExample:
        return lambda labels, outputs: tf.where(labels == example, outputs[:, 0], 0)

    assembly = assemble_custom(
        "tower",
        2,
        lambda: [Noise(1.0), keras.layers.EinsumDense("bi,i->bi", 1)],
        np.zeros([4, 1], np.float32),
        metrics={f"output_{i}": output_of(i) for i in range(4)},
        eval_global_batch_size=2,
    )
    means = assembly.evaluation.run().means
    assert len({means[f"output_{i}"] for i in range(4)}) == 4
