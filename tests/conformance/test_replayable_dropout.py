"""model.replayable_dropout: an example's mask does not depend on who computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.types import Batch
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
from tests.markers import chosen
from trainers.fault_tolerance.tensorflow_errors import refusal_of
from trainers.loop.parts import TrainingParts
from trainers.model.replica_invariant_dropout import ReplayableDropout, keep, key_of

SEVERAL_REPLICAS = chosen(
    [subject for subject in same_training() if subject[1] in (2, 3)],
    [subject for subject in same_training() if subject[1] == 3],
)
# Statistics are held against a chance of 1e-6, so that no fixed seed is unlucky.
UNLIKELY = 1e-6


@functools.cache
def trained(strategy: str, replicas: int, replayable: bool) -> Outcome:
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        model="mlp",
        hidden_units=(16, 16),
        dtype="float64",
        dropout=0.5,
        replayable_dropout=replayable,
        **UPDATES["adamw"],
    )
    return Subject.of(config).run(LAYOUTS["uneven"])


@pytest.mark.parametrize(("strategy", "replicas"), SEVERAL_REPLICAS)
def test_same_training_as_one_device(strategy: str, replicas: int) -> None:
    outcome = trained(strategy, replicas, replayable=True)
    expected = trained("one_device", 1, replayable=True)
    assert_same_training(outcome, expected, TOLERANCES["float64", "adamw"])


def test_a_run_that_goes_on_under_another_strategy_draws_what_it_would_have() -> None:
    def loss(assembly: TrainingParts, first_step: int, num_steps: int) -> np.ndarray:
        batches = assembly.strategy.distribute(assembly.batches(first_step))
        return assembly.loop_function(batches, num_steps).fetch().sums["loss"]

    features = np.random.default_rng(0).normal(size=[25, 16])
    first, second = (
        assemble_custom(
            strategy,
            replicas,
            lambda: [keras.layers.Dropout(0.5), keras.layers.Dense(3)],
            features,
            dtype="float64",
            global_batch_size=8,
            replayable_dropout=True,
        )
        for strategy, replicas in (("one_device", 1), ("tower", 3))
    )
    loss(first, 0, 5)
    saved = zip(second.state_variables(), first.state_variables(), strict=True)
    for variable, value in saved:
        variable.assign(value)
    np.testing.assert_allclose(loss(second, 5, 9), loss(first, 5, 9), rtol=1e-10)


def test_without_it_replicas_make_a_difference() -> None:
    outcome = trained("tower", 2, replayable=False)
    expected = trained("one_device", 1, replayable=False)
    difference = outcome.losses / expected.losses - 1
    assert np.abs(difference).max() > 0.01


class MaskOf:
    """Runs layers on ones for given examples of a step."""

    def __init__(self, layers: Sequence[keras.layers.Layer], shape: tuple[int, ...]):
        self.shape = shape
        self.model = keras.Sequential([keras.Input(shape), *layers])
        self.dropout = ReplayableDropout(self.model, seed=7)

    def __call__(self, examples: Sequence[int], step: int = 3) -> np.ndarray:
        indices = tf.constant(examples, tf.int64)
        ones = tf.ones([len(examples), *self.shape], self.model.compute_dtype)
        with self.dropout.replayed(batch_of(indices, step)):
            return self.model(ones, training=True).numpy()


def batch_of(indices: tf.Tensor, step: int) -> Batch:
    rows = tf.size(indices, tf.int64)
    step = tf.constant(step, tf.int64)
    return Batch(step, tf.constant(0, tf.int64), rows, rows, indices, None, None)


def test_the_mask_of_an_example_is_a_golden_value() -> None:
    """So that a run of last year can be repeated."""
    kept = MaskOf([keras.layers.Dropout(0.5)], (24,))([41, 5], step=12) != 0
    assert ["".join(map(str, row)) for row in kept.astype(int)] == [
        "011111010000011010011001",
        "111000001000010001000101",
    ]


def test_the_hash_is_splitmix64() -> None:
    """Against the definition in Python's whole numbers."""
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    key = mix(9)
    for word in (2, 1, 10**12):
        key = mix((key ^ word) + gamma & mask)
    assert int(key_of(9, 2, 1, tf.constant(10**12, tf.int64))) == key
    row = mix((key ^ 77) + gamma & mask)
    hashes = [mix(row + place * gamma & mask) for place in range(1, 101)]
    kept = keep(0.3, tf.constant(key, tf.uint64), tf.constant([77], tf.int64), [100])
    assert kept.numpy()[0].tolist() == [value / 2**64 >= 0.3 for value in hashes]


def drawn(rate: float, layer: int = 0, call: int = 0, step: int = 0) -> np.ndarray:
    """What is kept of 1000 examples with 1000 numbers each."""
    key = key_of(0, layer, call, tf.constant(step, tf.int64))
    return keep(rate, key, tf.range(1000, dtype=tf.int64), [1000]).numpy()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_row_column_and_step_keeps_its_fraction(rate: float) -> None:
    over_steps = np.stack([drawn(rate, step=step) for step in range(20)])
    for axes in ((0, 1), (0, 2), (1, 2)):
        counts = over_steps.sum(axis=axes)
        number = over_steps.size // counts.size
        variance = number * rate * (1 - rate)
        chi_squared = np.sum((counts - number * (1 - rate)) ** 2) / variance
        # Neither more uneven than chance nor more even.
        below = scipy.stats.chi2.cdf(chi_squared, counts.size)
        assert UNLIKELY < below < 1 - UNLIKELY


@pytest.mark.parametrize(
    "pair",
    {
        "examples": lambda: (drawn(0.5)[:-1], drawn(0.5)[1:]),
        "positions": lambda: (drawn(0.5)[:, :-1], drawn(0.5)[:, 1:]),
        "diagonals": lambda: (drawn(0.5)[:-1, 1:], drawn(0.5)[1:, :-1]),
        "steps": lambda: (drawn(0.5), drawn(0.5, step=1)),
        "layers": lambda: (drawn(0.5), drawn(0.5, layer=1)),
        "calls": lambda: (drawn(0.5), drawn(0.5, call=1)),
        "layer and step": lambda: (drawn(0.5, layer=1), drawn(0.5, step=1)),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_neighbours_are_independent(pair: tuple) -> None:
    one, other = pair[1]()
    equal = int((one == other).sum())
    assert scipy.stats.binomtest(equal, one.size, 0.5).pvalue > UNLIKELY


def test_a_row_is_the_same_wherever_it_stands() -> None:
    mask_of = MaskOf([keras.layers.Dropout(0.5)], (5, 7))
    whole = mask_of([4, 8, 15, 16])
    np.testing.assert_array_equal(mask_of([16, 4]), whole[[3, 0]])
    assert (mask_of([4], step=4) != whole[:1]).any()
    assert set(np.unique(whole)) == {0, 2}


def test_layers_and_calls_of_a_layer_get_masks_of_their_own() -> None:
    shared = keras.layers.Dropout(0.5)
    ones = keras.Input((64,))
    outputs = [shared(ones), shared(ones), keras.layers.Dropout(0.5)(ones)]
    model = keras.Model(ones, keras.ops.stack(outputs, axis=1))
    with ReplayableDropout(model, 0).replayed(batch_of(tf.constant([1], tf.int64), 1)):
        (masks,) = model(tf.ones([1, 64]), training=True).numpy()
    assert len(np.unique(masks, axis=0)) == 3


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
    values = MaskOf([layer], shape)([4, 5])
    assert values.shape == (2, *shape)
    whole = values.min(axis=shared, keepdims=True)
    np.testing.assert_array_equal(np.broadcast_to(whole, values.shape), values)
    # 64 numbers are kept or dropped alike once in 2^63.
    assert len(np.unique(whole)) == 2
    if 0 not in shared:
        assert (whole[0] != whole[1]).any()


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
def test_kept_numbers_are_scaled_as_keras_does(dtype: str) -> None:
    layer = keras.layers.Dropout(0.3, dtype=dtype)
    model = keras.Sequential([keras.Input((1000,)), layer])
    ones = tf.ones([2, 1000], layer.compute_dtype)
    indices = tf.constant([0, 1], tf.int64)
    with ReplayableDropout(model, 0).replayed(batch_of(indices, 0)):
        ours = model(ones, training=True)
        np.testing.assert_array_equal(model(ones, training=False), ones)
    keras_own = model(ones, training=True)
    assert ours.dtype == keras_own.dtype
    np.testing.assert_array_equal(np.unique(ours), np.unique(keras_own))


def test_afterwards_the_layers_are_as_before() -> None:
    mask_of = MaskOf([keras.layers.Dropout(0.5)], (64,))
    (layer,) = mask_of.model.layers
    before = {name: id(value) for name, value in vars(layer).items()}
    batch = batch_of(tf.constant([1], tf.int64), 0)
    with pytest.raises(RuntimeError), mask_of.dropout.replayed(batch):
        raise RuntimeError
    mask_of([1])
    assert {name: id(value) for name, value in vars(layer).items()} == before
    ones = tf.ones([1, 64])
    assert (mask_of.model(ones, training=True) != mask_of([1])).numpy().any()
    copy = keras.models.clone_model(mask_of.model)
    assert [v.name for v in copy.variables] == [v.name for v in mask_of.model.variables]


def test_a_model_that_communicates_while_it_computes() -> None:
    """MirroredStrategy then traces all replicas' models by turns."""

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
                replayable_dropout=True,
            ),
            8,
        )["loss"]
        for strategy, replicas in (("one_device", 1), ("mirrored", 3))
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-10)


class OwnDropout(keras.layers.Dropout):
    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return 2 * super().call(inputs, training=training)


class Block(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.noise = keras.layers.GaussianNoise(0.1, name="inner_noise")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.noise(inputs)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (lambda: keras.layers.GaussianDropout(0.5, name="noise"), "noise"),
        (lambda: keras.layers.AlphaDropout(0.5, name="noise"), "noise"),
        (lambda: keras.layers.RandomFlip(name="flip"), "flip"),
        (lambda: OwnDropout(0.5, name="own"), "own"),
        (Block, "inner_noise"),
        (lambda: keras.layers.Dropout(0.5, noise_shape=(8, 4, 4, 1)), "(8, 4, 4, 1)"),
    ],
)
def test_other_random_layers_are_refused_by_name(
    layer: Callable[[], keras.layers.Layer], named: str
) -> None:
    model = keras.Sequential([keras.Input((4, 4, 1)), layer()])
    with pytest.raises(UsageError) as refusal:
        ReplayableDropout(model, 0)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_rows_that_are_no_examples_are_refused() -> None:
    fold = keras.layers.Lambda(lambda values: tf.reshape(values, [-1, 4]))
    mask_of = MaskOf([fold, keras.layers.Dropout(0.5, name="folded")], (3, 4))
    with pytest.raises(tf.errors.InvalidArgumentError) as failure:
        mask_of([1, 2])
    refusal = refusal_of(failure.value, small_config(replayable_dropout=True))
    assert refusal is not None
    assert "layer 'folded'" in str(refusal)
    assert str(refusal).endswith("into the first.")
