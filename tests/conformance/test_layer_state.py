"""Tests of layer state, such as the moving statistics of the whole global batch."""

import functools
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.base import Examples, Settings
from strategies import registry
from strategies.common.errors import UsageError
from tests.conformance.custom import assemble_custom, assemble_model, train
from tests.conformance.harness import (
    alone_and_uneven,
    same_training,
    subjects,
)
from tests.markers import chosen, further
from trainers.loop.parts import TrainingParts

NUM_STEPS = 5
# 26 = 3 x 8 + 2: one of three replicas gets no example of the last batch.
NUM_EXAMPLES = 26
FEATURES = np.random.default_rng(0).normal(3, 2, (NUM_EXAMPLES, 6)).astype(np.float32)


def normalized(
    strategy: str, replicas: int, synchronized: bool = False, every: int | None = None
) -> TrainingParts:
    return assemble_custom(
        strategy,
        replicas,
        lambda: [
            keras.layers.BatchNormalization(momentum=0.9, synchronized=synchronized),
            keras.layers.Dense(3),
        ],
        FEATURES,
        sync_every_steps=every,
        global_batch_size=8,
        optimizer="sgd",
        learning_rate=0.05,
        dtype="float64",
    )


@functools.cache
def trained_on_one_device() -> tuple[TrainingParts, np.ndarray]:
    """Returns a normalized model after all steps, and the loss of each step."""
    assembly = normalized("one_device", 1)
    return assembly, train(assembly, NUM_STEPS)["loss"]


def moving_statistics(assembly: TrainingParts) -> tuple[np.ndarray, np.ndarray]:
    layer = assembly.model.layers[0]
    return layer.moving_mean.numpy(), layer.moving_variance.numpy()


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    chosen(alone_and_uneven(same_training()), [("mirrored", 3), ("tower", 3)]),
)
def test_moving_statistics_equal_those_of_one_device(
    strategy: str, replicas: int
) -> None:
    """Double precision; the bound leaves room for (m - old) / (1 - momentum)."""
    expected, _ = trained_on_one_device()
    assembly = normalized(strategy, replicas)
    train(assembly, NUM_STEPS)
    for got, want in zip(
        moving_statistics(assembly), moving_statistics(expected), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_moving_statistics_follow_the_definition() -> None:
    """Compares one device itself with averages of the batches, computed by hand."""
    assembly, _ = trained_on_one_device()
    mean, variance = np.zeros(6), np.ones(6)
    batches = iter(assembly.batches(0).dataset(0, 1))
    for _ in range(NUM_STEPS):
        rows = FEATURES[next(batches).indices.numpy()].astype(np.float64)
        mean = 0.9 * mean + 0.1 * rows.mean(axis=0)
        variance = 0.9 * variance + 0.1 * rows.var(axis=0)
    got_mean, got_variance = moving_statistics(assembly)
    np.testing.assert_allclose(got_mean, mean, rtol=1e-12)
    np.testing.assert_allclose(got_variance, variance, rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"update": "async"}], ids=str)
def test_a_momentum_of_one_keeps_the_statistics(settings: dict[str, Any]) -> None:
    assembly = assemble_custom(
        "tower",
        2,
        lambda: [keras.layers.BatchNormalization(momentum=1.0), keras.layers.Dense(3)],
        FEATURES,
        global_batch_size=8,
        **settings,
    )
    train(assembly, 2)
    np.testing.assert_array_equal(moving_statistics(assembly), [[0.0] * 6, [1.0] * 6])


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    # The test above has three replicas, one of which has no rows, of the others.
    chosen(alone_and_uneven(subjects()), [("parameter_averaging", 3)]),
)
def test_an_empty_share_gives_no_nan(strategy: str, replicas: int) -> None:
    assembly = normalized(strategy, replicas)
    sums = train(assembly, NUM_STEPS)
    assert sums["examples"].tolist() == [8, 8, 8, 2, 8]
    for values in [*sums.values(), *(w.numpy() for w in assembly.model.weights)]:
        assert np.isfinite(values).all()


SYNCHRONIZED = [
    s for s in same_training() if registry.traits(s[0]).sums_in_forward_pass
]


@pytest.mark.parametrize(
    ("strategy", "replicas", "every"),
    [
        *chosen([(*s, None) for s in SYNCHRONIZED], [("mirrored", 3, None)]),
        # Plain gradient descent that averages after every step is the same training.
        ("parameter_averaging", 3, 1),
    ],
)
def test_synchronized_normalization_is_the_same_training(
    strategy: str, replicas: int, every: int | None
) -> None:
    """A replica without examples computes on a row that no sum may count."""
    expected, losses = trained_on_one_device()
    assembly = normalized(strategy, replicas, synchronized=True, every=every)
    np.testing.assert_allclose(train(assembly, NUM_STEPS)["loss"], losses, rtol=1e-12)
    for weight, reference in zip(
        assembly.model.weights, expected.model.weights, strict=True
    ):
        # A gradient that is zero except for rounding leaves beta at about 1e-17.
        np.testing.assert_allclose(
            weight.numpy(), reference.numpy(), rtol=1e-10, atol=1e-15
        )


@pytest.mark.parametrize(
    ("strategy", "replicas"), chosen(SYNCHRONIZED, [("mirrored", 3)])
)
def test_synchronized_normalization_leaves_out_what_a_mask_hides(
    strategy: str, replicas: int
) -> None:
    lengths = np.arange(NUM_EXAMPLES) % 4 + 1
    hidden = np.arange(4) >= lengths[:, np.newaxis]
    sentences = np.repeat(FEATURES[:, np.newaxis], 4, axis=1) + np.arange(4)[:, None]
    sentences[hidden] = 0

    def trained(strategy: str, replicas: int) -> tuple[np.ndarray, list[np.ndarray]]:
        assembly = assemble_custom(
            strategy,
            replicas,
            lambda: [
                keras.layers.Masking(),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(3),
            ],
            sentences.astype(np.float32),
            global_batch_size=8,
            optimizer="sgd",
            learning_rate=0.05,
            dtype="float64",
        )
        losses = train(assembly, NUM_STEPS)["loss"]
        return losses, [weight.numpy() for weight in assembly.model.weights]

    losses, weights = trained(strategy, replicas)
    expected_losses, expected = trained("one_device", 1)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    for found, reference in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, reference, rtol=1e-10, atol=1e-15)


class OwnState(keras.layers.Layer):
    """A layer with a variable of each kind of state that a user's layer may have."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        del input_shape

        def state(name: str, shape: tuple[int, ...] = (), **settings: Any) -> Any:
            return self.add_weight(
                name=name,
                shape=shape,
                trainable=False,
                **{"initializer": "zeros", **settings},
            )

        self.average = state("average", (3,), initializer="ones")
        self.total = state("total")
        self.steps = state("steps", dtype="int32")
        self.of_rows = state("of_rows", (4,), initializer="ones")
        self.squared_steps = state("squared_steps", (2,))
        self.queue = state("queue", (3,))
        self.has_begun = state("has_begun", dtype="bool")

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            ops = keras.ops
            self.average.assign(self.average * 0.98)
            self.total.assign_add(0.5)
            self.steps.assign(self.steps + 1)
            used = ops.convert_to_tensor([True, False, True, False])
            self.of_rows.assign(ops.where(used, self.of_rows * 0.99, self.of_rows))
            steps = ops.cast(self.steps, "float32")
            self.squared_steps.assign(ops.square(steps) * ops.ones([2]))
            self.queue.assign(ops.concatenate([self.queue[1:], ops.ones([1])]))
            self.has_begun.assign(True)
        return inputs


class Pause(keras.layers.Layer):
    """A layer that lets other towers update between a step's reads and writes."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        def pause() -> np.ndarray:
            time.sleep(0.003)
            return np.zeros([], np.float32)

        with tf.control_dependencies([tf.numpy_function(pause, [], tf.float32)]):
            return tf.identity(inputs)


OVERLAPPING_STEPS = 460
# Each update rounds twice to 24 bits; in the worst case always in the same direction.
ROUNDING = OVERLAPPING_STEPS * 2 * 2.0**-24


# Settings of towers that train on stale weights.
STALE: dict[str, Any] = {
    "update": "async",
    "global_batch_size": 8,
    "optimizer": "sgd",
    "learning_rate": 0.001,
    "train_steps": OVERLAPPING_STEPS,
}


def overlapping(assembly: TrainingParts) -> TrainingParts:
    """Trains towers asynchronously, some of them on stale weights."""
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, OVERLAPPING_STEPS)
    assert results.applied_steps == OVERLAPPING_STEPS
    # Without staleness no update could be lost.
    assert results.staleness is not None
    assert results.staleness.max() > 0
    return assembly


def stateful(data: Examples, settings: Settings) -> keras.Model:
    """Builds a model with every kind of layer state, each in a branch.

    Rows of ones reach every layer except that of two calls, which gets zeros.
    """
    inputs = keras.Input(data.input_shape)
    ones = Pause()(inputs)
    zeros = keras.layers.Rescaling(0.0)(ones)
    shared = keras.layers.BatchNormalization(momentum=0.995, name="shared")
    renormalized = keras.layers.BatchNormalization(
        momentum=0.99, renorm=True, name="renormalized"
    )
    branches = [OwnState(name="own")(ones), shared(shared(zeros)), renormalized(ones)]
    merged = keras.layers.Concatenate()(branches)
    return keras.Model(inputs, keras.layers.Dense(3)(merged))


def test_overlapping_updates_of_layer_state_are_all_kept() -> None:
    assembly = overlapping(
        assemble_model("tower", 2, stateful, np.ones([26, 2], np.float32), **STALE)
    )
    assert_own_state_is_kept(assembly.model.get_layer("own"))
    # A layer that is called twice decays twice in a step.
    variance = assembly.model.get_layer("shared").moving_variance.numpy()
    expected = np.full(2, 0.995 ** (2 * OVERLAPPING_STEPS))
    np.testing.assert_allclose(variance, expected, rtol=2 * ROUNDING)
    assert_renormalization_is_kept(assembly.model.get_layer("renormalized"))


def assert_own_state_is_kept(layer: OwnState) -> None:
    average = np.full(3, 0.98**OVERLAPPING_STEPS)
    np.testing.assert_allclose(layer.average.numpy(), average, rtol=ROUNDING)
    assert layer.total.numpy() == OVERLAPPING_STEPS / 2
    assert layer.steps.numpy() == OVERLAPPING_STEPS
    # Towers add differences from stale values: each counts, by nearly the full amount.
    of_rows = layer.of_rows.numpy()
    np.testing.assert_array_equal(of_rows[1::2], 1)
    np.testing.assert_allclose(of_rows[::2], 0.99**OVERLAPPING_STEPS, rtol=0.2)
    # An assigned value is the value of one of the last steps, and no sum.
    squared = np.sqrt(layer.squared_steps.numpy())
    assert OVERLAPPING_STEPS - 50 < squared[0] == squared[1] <= OVERLAPPING_STEPS
    np.testing.assert_array_equal(layer.queue.numpy(), 1)
    assert layer.has_begun.numpy()


def assert_renormalization_is_kept(layer: keras.layers.BatchNormalization) -> None:
    decayed = np.full(2, 0.99**OVERLAPPING_STEPS)
    for average in (layer.moving_mean, layer.renorm_mean):
        np.testing.assert_allclose(1 - average.numpy(), decayed, rtol=1e-3)
    deviation = decayed + (1 - decayed) * np.sqrt(layer.epsilon)
    for average in (layer.moving_stddev, layer.renorm_stddev):
        np.testing.assert_allclose(average.numpy(), deviation, rtol=1e-3)
    # Keras computes it from the deviation that one of the last steps has read.
    variance = np.square(deviation) - layer.epsilon
    np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=0.5)


@pytest.mark.exhaustive
def test_micro_batches_of_overlapping_updates_are_one_batch() -> None:
    assembly = overlapping(
        assemble_custom(
            "tower",
            3,
            lambda: [
                Pause(),
                keras.layers.BatchNormalization(momentum=0.99),
                keras.layers.Dense(3),
            ],
            FEATURES,
            gradient_accumulation_steps=4,
            **STALE,
        )
    )
    layer = assembly.model.layers[1]
    mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    decayed = 0.99**OVERLAPPING_STEPS
    np.testing.assert_allclose(mean, (1 - decayed) * FEATURES.mean(axis=0), atol=0.5)
    # The variance within n of 26 rows is on average 26/25 x (1 - 1/n) of that of all.
    # Three of four batches have 8 rows and the fourth has 2; micro-batches have a
    # quarter of them, whose shares would be 0.39 on average.
    share = 26 / 25 * (3 * 7 / 8 + 1 / 2) / 4
    expected = decayed + (1 - decayed) * share * FEATURES.var(axis=0)
    np.testing.assert_allclose(variance, expected, rtol=0.2)


# Keras rounds the rate to single precision, in which this one is exact.
RATE = 2.0**-7


def spectral(strategy: str, replicas: int, **settings: Any) -> TrainingParts:
    return assemble_custom(
        strategy,
        replicas,
        lambda: [
            keras.layers.SpectralNormalization(keras.layers.Dense(4)),
            keras.layers.Dense(3),
        ],
        FEATURES,
        **{
            "global_batch_size": NUM_EXAMPLES,
            "optimizer": "sgd",
            "learning_rate": RATE,
            "dtype": "float64",
            **settings,
        },
    )


def test_spectral_normalization_trains_as_with_fit() -> None:
    """The optimizer trains the kernel, and the layer assigns it in every step too."""
    assembly = spectral("one_device", 1)
    fitted = keras.models.clone_model(assembly.model)
    fitted.set_weights(assembly.model.get_weights())
    fitted.compile(
        optimizer=keras.optimizers.SGD(RATE),
        loss=lambda labels, outputs: keras.ops.mean(keras.ops.square(outputs), -1),
    )
    labels = np.zeros([NUM_EXAMPLES, 3])
    fitted.fit(FEATURES, labels, NUM_EXAMPLES, epochs=NUM_STEPS, verbose=0)
    train(assembly, NUM_STEPS)
    for got, want in zip(assembly.model.weights, fitted.weights, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "replicas"), [("tower", 3), further("mirrored", 3)]
)
def test_spectral_normalization_is_the_same_training(
    strategy: str, replicas: int
) -> None:
    expected = spectral("one_device", 1, global_batch_size=8)
    assembly = spectral(strategy, replicas, global_batch_size=8)
    train(expected, NUM_STEPS)
    train(assembly, NUM_STEPS)
    for got, want in zip(assembly.model.weights, expected.model.weights, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("tower", {"update": "async"}),
        ("tower", {"average": "losses"}),
        ("model_parallel", {}),
    ],
    ids=str,
)
def test_spectral_normalization_is_refused_where_it_is_not_the_same(
    strategy: str, settings: dict[str, str]
) -> None:
    assembly = spectral(strategy, 1 if strategy == "model_parallel" else 2, **settings)
    with pytest.raises(UsageError, match=r"trained, in every step.*; leave out --\w+="):
        train(assembly, 1)
