"""Checks that a step with a gradient that is not finite changes nothing."""

import re
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.base import Build, Examples, Settings
from strategies import registry
from strategies.common.types import StepResults, SyncedFlags
from strategies.inner_loop.results import join_results
from tests.conformance.custom import assemble_custom, assemble_model
from tests.conformance.harness import subjects
from tests.markers import chosen, further
from trainers.fault_tolerance.non_finite import (
    describe_divergence,
    require_finite_weights,
)
from trainers.loop.parts import TrainingParts

# The last batch of an epoch is smaller, and some replicas get no example of it.
NUM_EXAMPLES, GLOBAL_BATCH_SIZE = 43, 8
# Index of the example whose gradient is not finite.
MARKED = 0
_MARK = 1000.0


class Trap(keras.layers.Layer):
    """A layer that returns its input, or sqrt(0) for marked examples."""

    def call(self, inputs: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        marked = features[:, :1] == _MARK
        # The derivative of the root is infinite at 0; times the derivative 0 of 0 x it
        # is no number.
        return tf.where(marked, tf.sqrt(0 * inputs), inputs)


class Memory(keras.layers.Layer):
    """A layer that returns its input, and keeps infinity after a marked example."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="seen"
        )

    def call(self, inputs: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        marked = tf.reduce_any(features[:, 0] == _MARK)
        self.seen.assign(tf.where(marked, np.inf, 1.0))
        return inputs


def branched(layer: Callable[[], keras.layers.Layer]) -> Build:
    """Returns a model of two branches, of which only the second has the layer."""

    def build(data: Examples, settings: Settings) -> keras.Model:
        features = keras.Input(data.input_shape)
        well = keras.layers.Dense(4, name="well")(features)
        ill = layer()(keras.layers.Dense(4, name="ill")(features), features)
        outputs = keras.layers.Dense(2, name="outputs")(well + ill)
        return keras.Model(features, outputs)

    return build


def examples() -> np.ndarray:
    features = np.random.default_rng(1).normal(size=(NUM_EXAMPLES, 5))
    features[MARKED] = _MARK
    return features.astype(np.float32)


def assembled(
    strategy: str, replicas: int, layer: Callable[[], keras.layers.Layer] = Trap
) -> TrainingParts:
    return assemble_model(
        strategy,
        replicas,
        branched(layer),
        examples(),
        global_batch_size=GLOBAL_BATCH_SIZE,
        optimizer="adam",
        # The rate is so small that the marked example has no other effect.
        learning_rate=1e-6,
    )


def bad_step(assembly: TrainingParts) -> int:
    """Returns the step of the marked example in the first epoch."""
    for step, batch in enumerate(assembly.batches(0).dataset(0, 1)):
        if MARKED in batch.indices:
            return step
    raise AssertionError("no batch has the marked example")


def values(assembly: TrainingParts) -> list[np.ndarray]:
    variables = [*assembly.model.weights, *assembly.optimizer.variables]
    return [variable.numpy() for variable in variables] + [assembly.step.numpy()]


def assert_left_out(assembly: TrainingParts, expected: str) -> None:
    """Asserts that the step of the marked example changes nothing."""
    step = bad_step(assembly)
    assert step > 0, "no step before the bad one has changed anything"
    batches = assembly.strategy.distribute(assembly.batches(0))
    assert assembly.loop_function(batches, step).first_not_finite is None
    before = values(assembly)
    results = assembly.loop_function(batches, 3)
    assert (results.applied_steps, results.attempted_steps) == (0, 1)
    assert np.isfinite(results.sums["loss"]).all()
    for now, then in zip(values(assembly), before, strict=True):
        np.testing.assert_array_equal(now, then)
    found = describe_divergence(assembly.model, assembly.layer_state, results)
    assert found == f"{expected} is not finite at"


class Mask(keras.layers.Layer):
    """A layer that returns its input, and has an infinite, constant weight."""

    def build(self, *shapes: tuple[int | None, ...]) -> None:
        kept = keras.initializers.Constant(-np.inf)
        self.add_weight(shape=(2,), initializer=kept, trainable=False, name="mask")

    def call(self, inputs: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        return inputs


# Two replicas where a strategy allows two, and four, which are more than the last batch
# has examples.
SUBJECTS = [
    (name, replicas)
    for name, replicas in subjects()
    if replicas == min(2, registry.traits(name).max_replicas or 2)
    or (name, replicas) == ("mirrored", 4)
]


@pytest.mark.parametrize(("strategy", "replicas"), chosen(SUBJECTS, [("mirrored", 4)]))
def test_a_gradient_that_is_not_finite_beside_a_loss_that_is(
    strategy: str, replicas: int
) -> None:
    assert_left_out(assembled(strategy, replicas), "the gradient of ill/kernel")


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    # The test above leaves out an update of mirrored replicas.
    [further("one_device", 1), further("mirrored", 3), ("parameter_averaging", 2)],
)
def test_layer_state_that_is_not_finite(strategy: str, replicas: int) -> None:
    assembly = assembled(strategy, replicas, lambda: Memory(name="memory"))
    assert_left_out(assembly, "the new value of memory/seen")


def test_towers_that_do_not_wait_leave_the_update_out_as_well() -> None:
    assembly = assemble_model(
        "tower",
        3,
        branched(Trap),
        examples(),
        update="async",
        global_batch_size=GLOBAL_BATCH_SIZE,
        train_steps=18,
    )
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 18)
    assert results.applied_steps < results.attempted_steps
    assert results.applied_steps == assembly.step.numpy()
    found = describe_divergence(assembly.model, assembly.layer_state, results)
    assert found == "the gradient of ill/kernel is not finite at"
    for value in values(assembly):
        assert np.isfinite(value).all()


def test_squares_beyond_the_type_are_clipped_like_any_gradient() -> None:
    """tf.clip_by_global_norm turns such gradients into values that are no numbers."""
    assembly = assemble_custom(
        "one_device",
        1,
        lambda: [keras.layers.Dense(1)],
        np.ones([GLOBAL_BATCH_SIZE, 2], np.float32),
        loss=lambda labels, outputs: 1e25 * outputs[:, 0],
        global_batch_size=GLOBAL_BATCH_SIZE,
        optimizer="sgd",
        clip_global_norm=1.0,
    )
    before = values(assembly)
    batches = assembly.strategy.distribute(assembly.batches(0))
    assert assembly.loop_function(batches, 2).applied_steps == 2
    for now, then in zip(values(assembly)[:2], before[:2], strict=True):
        assert np.isfinite(now).all()
        # Two steps of learning rate 0.001 along a gradient of norm 1.
        assert np.linalg.norm(now - then) <= 2.001e-3


def test_a_norm_near_the_end_of_the_type_clips_nothing() -> None:
    """float32 cannot represent the inverse of the norm, so gradients became zero."""

    def trained(clip_global_norm: float | None) -> list[np.ndarray]:
        assembly = assemble_custom(
            "one_device",
            1,
            lambda: [keras.layers.Dense(1)],
            np.ones([GLOBAL_BATCH_SIZE, 2], np.float32),
            loss=lambda labels, outputs: outputs[:, 0],
            global_batch_size=GLOBAL_BATCH_SIZE,
            optimizer="sgd",
            clip_global_norm=clip_global_norm,
        )
        batches = assembly.strategy.distribute(assembly.batches(0))
        assert assembly.loop_function(batches, 2).applied_steps == 2
        return values(assembly)

    for clipped, free in zip(trained(3e38), trained(None), strict=True):
        np.testing.assert_array_equal(clipped, free)


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    chosen(SUBJECTS, [("parameter_averaging", 2)]),
)
def test_a_weight_that_no_step_changes_may_be_infinite(
    strategy: str, replicas: int
) -> None:
    assembly = assembled(strategy, replicas, Mask)
    batches = assembly.strategy.distribute(assembly.batches(0))
    assert assembly.loop_function(batches, 8).applied_steps == 8
    assembly.strategy.average_replica_variables()
    (mask,) = (v for v in assembly.model.weights if v.name == "mask")
    assert (mask.numpy() == -np.inf).all()
    require_finite_weights(assembly.model, assembly.layer_state, 8)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda labels, y: y[:, 0] / 0, "the loss is (-?inf|nan) and the gradient of"),
        (
            lambda labels, y: tf.stop_gradient(y[:, 0] / 0) + y[:, 0],
            "the loss is -?inf, with all gradients and weights finite, at",
        ),
    ],
)
def test_a_loss_that_is_not_finite_is_told_from_gradients_that_are(
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], words: str
) -> None:
    assembly = assemble_custom(
        "one_device",
        1,
        lambda: [keras.layers.Dense(1, name="only")],
        np.ones([GLOBAL_BATCH_SIZE, 2], np.float32),
        loss=loss,
        global_batch_size=GLOBAL_BATCH_SIZE,
    )
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 2)
    assert results.applied_steps == 0
    found = describe_divergence(assembly.model, assembly.layer_state, results)
    assert re.match(words, found), found


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(0, "the value of {}/first/kernel"), (1, "the gradient of {}/first/kernel")],
)
def test_the_first_variable_is_named_by_its_value_or_else_its_gradient(
    layer: int, expected: str
) -> None:
    assembly = assemble_custom(
        "one_device",
        1,
        lambda: [keras.layers.Dense(2, name="first"), keras.layers.Dense(1)],
        np.ones([GLOBAL_BATCH_SIZE, 2], np.float32),
        global_batch_size=GLOBAL_BATCH_SIZE,
    )
    kernel = assembly.model.layers[layer].kernel
    kernel.assign(tf.fill(kernel.shape, np.inf))
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 2)
    found = describe_divergence(assembly.model, assembly.layer_state, results)
    assert expected.format(assembly.model.name) in found


def test_of_stretches_side_by_side_the_one_that_ended_early_is_the_last() -> None:
    def stretch(applied: int, loss: float, not_finite: int | None) -> StepResults:
        return StepResults(
            applied_steps=applied,
            sums={"loss": np.array([1.0, loss])},
            step_seconds=np.ones(2),
            input_seconds=np.zeros(2),
            details={},
            agreed=SyncedFlags(),
            attempted_steps=2,
            first_not_finite=not_finite,
        )

    parts = [stretch(1, 3.0, 5), stretch(2, 2.0, None)]
    results = join_results(parts, ["worker-0", "worker-1"], 2)
    assert (results.applied_steps, results.first_not_finite) == (3, 5)
    assert list(results.sums["loss"]) == [1.0, 2.0, 1.0, 3.0]
    assert results.workers is not None
    assert list(results.workers) == ["worker-1"] * 2 + ["worker-0"] * 2
