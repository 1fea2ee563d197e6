"""Checks that --jit_compile=on is the same training under every strategy."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
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

# XLA takes seconds to compile for each number of rows and each replica.
TWO_REPLICAS = chosen(
    [subject for subject in same_training() if subject[1] == 2], [("tower", 2)]
)


@functools.cache
def trained(strategy: str, replicas: int, update: str, **settings: object) -> Outcome:
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        dtype="float64",
        **UPDATES[update],
        **settings,
    )
    return Subject.of(config).run(LAYOUTS["uneven"])


@pytest.mark.parametrize(("strategy", "replicas"), TWO_REPLICAS)
def test_same_training_as_one_device(strategy: str, replicas: int) -> None:
    settings = {
        "model": "mlp",
        "dropout": 0.5,
        "replayable_random_numbers": True,
        "jit_compile": "on",
    }
    outcome = trained(strategy, replicas, "adamw", **settings)
    expected = trained("one_device", 1, "adamw", **settings)
    assert_same_training(outcome, expected, TOLERANCES["float64", "adamw"])


def test_moving_statistics_are_those_without_it() -> None:
    """The compiled part takes layer state as an argument and returns it."""

    def statistics(jit_compile: str) -> list[np.ndarray]:
        assembly = assemble_custom(
            "tower",
            2,
            lambda: [keras.layers.BatchNormalization(), keras.layers.Dense(2)],
            np.random.default_rng(0).normal(3, 2, size=[20, 4]),
            dtype="float64",
            global_batch_size=10,
            jit_compile=jit_compile,
        )
        train(assembly, 4)
        return [v.numpy() for v in assembly.model.layers[0].non_trainable_variables]

    for compiled, plain in zip(statistics("on"), statistics("off"), strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-12)


def test_what_xla_cannot_do_is_refused_in_one_line() -> None:
    def spelled(values: tf.Tensor) -> tf.Tensor:
        lengths = tf.strings.length(tf.strings.as_string(values))
        return values * tf.cast(lengths, values.dtype)

    with pytest.raises(UsageError) as refusal:
        assemble_custom(
            "one_device",
            1,
            lambda: [keras.layers.Dense(2), keras.layers.Lambda(spelled)],
            np.ones([8, 2]),
            global_batch_size=8,
            jit_compile="on",
        )
    assert str(refusal.value) == (
        "XLA cannot compile this model: it has no AsString; use --jit_compile=off."
    )
    failure = refusal.value.__cause__
    assert isinstance(failure, ValueError)
    assert refusal_of(failure, small_config(jit_compile="off")) is None


def test_a_sum_over_replicas_within_a_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="layer 'norm': its sum over replicas cannot"):
        assemble_custom(
            "mirrored",
            2,
            lambda: [keras.layers.BatchNormalization(synchronized=True, name="norm")],
            np.ones([8, 2]),
            global_batch_size=8,
            jit_compile="on",
        )


# test_compiled_loop.py has more steps and a last batch of another size.
@pytest.mark.exhaustive
def test_same_training_as_without_it() -> None:
    outcome = trained("one_device", 1, "sgd", model="mlp", jit_compile="on")
    expected = trained("one_device", 1, "sgd", model="mlp")
    assert_same_training(outcome, expected, TOLERANCES["float64", "sgd"])
