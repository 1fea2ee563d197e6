"""Tests of model.replayable_random_numbers, which gives each example its numbers."""

import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.conformance.custom import assemble_custom, train
from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Outcome,
    Subject,
    same_training,
    small_config,
)
from tests.conformance.test_same_training import TOLERANCES, assert_same_training
from trainers.loop.parts import TrainingParts
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers

SEVERAL_REPLICAS = [subject for subject in same_training() if subject[1] in (2, 3)]
# Statistical tests fail below a chance of 1e-6, so that no fixed seed is unlucky.
UNLIKELY = 1e-6
NUMBERS = ReplayedRandomNumbers()


@functools.cache
def trained(strategy: str, replicas: int, replayable: bool) -> Outcome:
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        model="mlp",
        hidden_units=(16, 16),
        dtype="float64",
        dropout=0.5,
        replayable_random_numbers=replayable,
        **UPDATES["adamw"],
    )
    return Subject.of(config).run(LAYOUTS["uneven"])


# The test below has three towers, and test_gradient_accumulation.py compares mirrored
# replicas with one device.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("strategy", "replicas"), SEVERAL_REPLICAS)
def test_same_training_as_one_device(strategy: str, replicas: int) -> None:
    outcome = trained(strategy, replicas, replayable=True)
    expected = trained("one_device", 1, replayable=True)
    assert_same_training(outcome, expected, TOLERANCES["float64", "adamw"])


def test_a_run_that_goes_on_under_another_strategy_draws_what_it_would_have() -> None:
    def loss(assembly: TrainingParts, first_step: int, num_steps: int) -> np.ndarray:
        batches = assembly.strategy.distribute(assembly.batches(first_step))
        return assembly.loop_function(batches, num_steps).sums["loss"]

    features = np.random.default_rng(0).normal(size=[25, 16])
    first, second = (
        assemble_custom(
            strategy,
            replicas,
            lambda: [keras.layers.Dropout(0.5), keras.layers.Dense(3)],
            features,
            dtype="float64",
            global_batch_size=8,
            replayable_random_numbers=True,
        )
        for strategy, replicas in (("one_device", 1), ("tower", 3))
    )
    loss(first, 0, 5)
    saved = zip(second.state_variables(), first.state_variables(), strict=True)
    for variable, value in saved:
        variable.assign(value)
    np.testing.assert_allclose(loss(second, 5, 9), loss(first, 5, 9), rtol=1e-10)


# test_randomness.py compares the masks of replicas.
@pytest.mark.exhaustive
def test_without_it_replicas_make_a_difference() -> None:
    outcome = trained("tower", 2, replayable=False)
    expected = trained("one_device", 1, replayable=False)
    difference = outcome.losses / expected.losses - 1
    assert np.abs(difference).max() > 0.01


def dropped(
    layer: keras.layers.Layer,
    examples: Sequence[int],
    shape: tuple[int, ...],
    seed: int,
) -> np.ndarray:
    """Returns the output of a layer for ones, for examples of a step with a seed."""
    ones = tf.ones([len(examples), *shape], layer.compute_dtype)
    layer.seed_generator.state.assign([seed, 0])
    with NUMBERS.replayed(tf.constant(examples, tf.int64)):
        return layer(ones, training=True).numpy()


def drawn(seed: int, num_examples: int = 1000, count: int = 1000) -> np.ndarray:
    """Returns uniform numbers in [0, 1) of some examples, [num_examples, count]."""
    with NUMBERS.replayed(tf.range(num_examples, dtype=tf.int64)):
        return keras.random.uniform((num_examples, count), seed=seed).numpy()


def test_the_mask_of_an_example_is_a_golden_value() -> None:
    """The value is fixed, so that a run of last year can be repeated."""
    kept = dropped(keras.layers.Dropout(0.5), [41, 5], (24,), seed=12) != 0
    assert ["".join(map(str, row)) for row in kept.astype(int)] == [
        "010100100111011101011001",
        "100000111010000011110000",
    ]


def test_the_hash_is_splitmix64() -> None:
    """Compares with the definition, computed in Python's integers."""
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    # The seed of a call is a pair of numbers, 9 and 0.
    key = mix((mix(9) ^ 0) + gamma & mask)
    row = mix((key ^ 77) + gamma & mask)
    hashes = [mix(row + place * gamma & mask) for place in range(1, 101)]
    with NUMBERS.replayed(tf.constant([77], tf.int64)):
        numbers = keras.random.uniform((1, 100), dtype="float64", seed=9)
    assert numbers.numpy()[0].tolist() == [(h >> 11) / 2**53 for h in hashes]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_row_column_and_step_keeps_its_fraction(rate: float) -> None:
    over_steps = np.stack([drawn(step) >= rate for step in range(20)])
    for axes in ((0, 1), (0, 2), (1, 2)):
        counts = over_steps.sum(axis=axes)
        number = over_steps.size // counts.size
        variance = number * rate * (1 - rate)
        chi_squared = np.sum((counts - number * (1 - rate)) ** 2) / variance
        # The counts are neither more uneven than chance nor more even.
        below = scipy.stats.chi2.cdf(chi_squared, counts.size)
        assert UNLIKELY < below < 1 - UNLIKELY


@pytest.mark.parametrize(
    "pair",
    {
        "examples": lambda: (drawn(0)[:-1], drawn(0)[1:]),
        "positions": lambda: (drawn(0)[:, :-1], drawn(0)[:, 1:]),
        "diagonals": lambda: (drawn(0)[:-1, 1:], drawn(0)[1:, :-1]),
        "seeds": lambda: (drawn(0), drawn(1)),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_neighbours_are_independent(pair: tuple) -> None:
    one, other = (numbers >= 0.5 for numbers in pair[1]())
    equal = int((one == other).sum())
    assert scipy.stats.binomtest(equal, one.size, 0.5).pvalue > UNLIKELY


@pytest.mark.parametrize(
    ("draw", "expected"),
    {
        "uniform": (
            lambda shape: keras.random.uniform(shape, -2.0, 3.0, seed=4),
            scipy.stats.uniform(-2, 5),
        ),
        "normal": (
            lambda shape: keras.random.normal(shape, 1.0, 2.0, seed=4),
            scipy.stats.norm(1, 2),
        ),
        "truncated": (
            lambda shape: keras.random.truncated_normal(shape, 1.0, 2.0, seed=4),
            scipy.stats.truncnorm(-2, 2, 1, 2),
        ),
    }.values(),
)
def test_numbers_have_the_distribution_of_keras(
    draw: Callable[[tuple], tf.Tensor], expected: scipy.stats.rv_continuous
) -> None:
    with NUMBERS.replayed(tf.range(500, dtype=tf.int64)):
        numbers = draw((500, 100)).numpy().ravel()
    assert scipy.stats.kstest(numbers, expected.cdf).pvalue > UNLIKELY


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_uniform_numbers_do_not_reach_their_limit(dtype: str) -> None:
    """Several of 50,000 numbers of 53 bits would be rounded to the limit."""
    with NUMBERS.replayed(tf.range(500, dtype=tf.int64)):
        numbers = keras.random.uniform((500, 100), 1.0, 2.0, dtype, seed=4)
    assert np.max(numbers) < 2


def test_whole_numbers_and_classes_have_their_chances() -> None:
    chances = [0.1, 0.6, 0.3]
    logits = np.tile(np.log(chances), (500, 1)).astype(np.float32)
    with NUMBERS.replayed(tf.range(500, dtype=tf.int64)):
        dice = keras.random.randint((500, 40), 1, 7, seed=5).numpy()
        classes = keras.random.categorical(logits, 40, seed=5).numpy()
    for values, first, expected in ((dice, 1, [1 / 6] * 6), (classes, 0, chances)):
        counts = np.bincount(values.ravel() - first)
        expected_counts = np.array(expected) * values.size
        assert scipy.stats.chisquare(counts, expected_counts).pvalue > UNLIKELY


def test_a_row_is_the_same_wherever_it_stands() -> None:
    layer = keras.layers.Dropout(0.5)
    whole = dropped(layer, [4, 8, 15, 16], (5, 7), seed=3)
    np.testing.assert_array_equal(dropped(layer, [16, 4], (5, 7), 3), whole[[3, 0]])
    assert (dropped(layer, [4], (5, 7), seed=4) != whole[:1]).any()
    assert set(np.unique(whole)) == {0, 2}


def test_rows_of_parts_of_examples_go_with_the_example() -> None:
    """A model does this where it folds a sequence into the batch."""

    def draw(examples: Sequence[int]) -> np.ndarray:
        @tf.function(input_signature=[tf.TensorSpec([None, 3])])
        def folded(values: tf.Tensor) -> tf.Tensor:
            rows = tf.reshape(values, [-1, 1])
            return keras.random.uniform((tf.shape(rows)[0], 2), seed=1)

        with NUMBERS.replayed(tf.constant(examples, tf.int64)):
            return folded(tf.zeros([len(examples), 3])).numpy()

    np.testing.assert_array_equal(draw([2, 7, 9])[3:6], draw([7]))


def test_a_number_for_the_whole_batch_is_the_same_on_every_replica() -> None:
    def draw(examples: Sequence[int]) -> np.ndarray:
        with NUMBERS.replayed(tf.constant(examples, tf.int64)):
            return np.concatenate(
                [
                    keras.random.uniform((1, 4), seed=1).numpy().ravel(),
                    keras.random.uniform((), seed=1).numpy().ravel(),
                ]
            )

    np.testing.assert_array_equal(draw([2, 7, 9]), draw([5, 4, 3]))


@pytest.mark.parametrize("rows", [3, 2, 4])
def test_numbers_do_not_depend_on_what_is_known_of_shapes(rows: int) -> None:
    # In Keras's own fit the number of examples is no part of their shape.
    examples = tf.constant([7, 8, 9], tf.int64)
    unknown = tf.Variable(examples, shape=[None], trainable=False)
    drawn = []
    for one in (examples, unknown):
        draw = tf.function(lambda: keras.random.normal((rows, 2), seed=4))
        with NUMBERS.replayed(one):
            drawn.append(draw())
    np.testing.assert_array_equal(*drawn)


def test_calls_of_a_layer_get_masks_of_their_own() -> None:
    shared = keras.layers.Dropout(0.5)
    with NUMBERS.replayed(tf.constant([1], tf.int64)):
        ones = tf.ones([1, 64])
        first, second = (shared(ones, training=True).numpy() for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize(
    ("layer", "shape", "shared"),
    [
        (keras.layers.SpatialDropout1D(0.5), (9, 64), (1,)),
        (keras.layers.SpatialDropout2D(0.5), (3, 4, 64), (1, 2)),
        (
            keras.layers.SpatialDropout2D(0.5, data_format="channels_first"),
            (64, 3, 4),
            (2, 3),
        ),
        (keras.layers.SpatialDropout3D(0.5), (3, 4, 2, 64), (1, 2, 3)),
        (keras.layers.Dropout(0.5, noise_shape=(None, 1, 64)), (9, 64), (1,)),
        (keras.layers.Dropout(0.5, noise_shape=(1, 64)), (64,), (0,)),
    ],
    ids=lambda value: value.__class__.__name__,
)
def test_a_mask_is_shared_along_the_axes_the_layer_says(
    layer: keras.layers.Layer, shape: tuple[int, ...], shared: tuple[int, ...]
) -> None:
    values = dropped(layer, [4, 5], shape, seed=2)
    assert values.shape == (2, *shape)
    whole = values.min(axis=shared, keepdims=True)
    np.testing.assert_array_equal(np.broadcast_to(whole, values.shape), values)
    # The chance that all 64 numbers are kept, or all dropped, is 2^-63.
    assert len(np.unique(whole)) == 2
    if 0 not in shared:
        assert (whole[0] != whole[1]).any()


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
def test_kept_numbers_are_scaled_as_keras_does(dtype: str) -> None:
    layer = keras.layers.Dropout(0.3, dtype=dtype)
    ours = dropped(layer, [0, 1], (1000,), seed=0)
    keras_own = layer(tf.ones([2, 1000], layer.compute_dtype), training=True).numpy()
    assert ours.dtype == keras_own.dtype
    np.testing.assert_array_equal(np.unique(ours), np.unique(keras_own))


def test_afterwards_keras_draws_as_before() -> None:
    before = keras.random.uniform((3, 2), seed=8).numpy()
    with pytest.raises(RuntimeError), NUMBERS.replayed(tf.constant([1], tf.int64)):
        raise RuntimeError
    assert (drawn(8, 3, 2) != before).all()
    np.testing.assert_array_equal(keras.random.uniform((3, 2), seed=8), before)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.GaussianNoise(0.1, seed=1),
        lambda: keras.layers.GaussianDropout(0.5, seed=1),
        lambda: keras.layers.AlphaDropout(0.5, seed=1),
        lambda: keras.layers.RandomFlip(seed=1),
        lambda: keras.layers.RandomRotation(0.2, seed=1),
        lambda: keras.layers.RandomBrightness(0.5, seed=1),
    ],
)
def test_other_random_layers_are_replayed_too(
    layer: Callable[[], keras.layers.Layer],
) -> None:
    images = np.random.default_rng(0).uniform(size=[4, 6, 6, 1]).astype(np.float32)

    def outputs_for(rows: Sequence[int]) -> np.ndarray:
        with NUMBERS.replayed(tf.constant([10 + row for row in rows], tf.int64)):
            return layer()(images[list(rows)], training=True).numpy()

    whole = outputs_for([0, 1, 2, 3])
    np.testing.assert_allclose(outputs_for([2, 3]), whole[2:], rtol=1e-6)
    assert (whole != images).any()


def test_a_model_that_communicates_while_it_computes() -> None:
    """MirroredStrategy then traces the models of all replicas alternately."""

    def layers() -> list[keras.layers.Layer]:
        return [
            keras.layers.Dense(8),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dropout(0.5),
        ]

    features = np.random.default_rng(0).normal(size=[24, 5]).astype(np.float32)
    losses = [
        train(
            assemble_custom(
                strategy,
                replicas,
                layers,
                features,
                global_batch_size=12,
                dtype="float64",
                replayable_random_numbers=True,
            ),
            8,
        )["loss"]
        for strategy, replicas in (("one_device", 1), ("mirrored", 2))
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-10)
