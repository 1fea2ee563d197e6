"""Checks that --gradient_accumulation_steps trains as the whole batch does."""

import functools
from typing import Any

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
    alone_and_uneven,
    same_training,
    small_config,
)
from tests.conformance.test_same_training import TOLERANCES, assert_same_training
from tests.conformance.test_sparse_gradients import (
    BOUNDS,
    NUM_ROWS,
    clicks_config,
    largest_tensor,
    looks_at_every_operation,
)
from tests.conformance.test_sparse_gradients import reference as sparse_reference
from tests.markers import chosen, further
from trainers.loop.parts import TrainingParts

# The layouts divide 24 examples, 10 examples and a single one (the last of 97) into 3 x
# 3 parts: parts of unequal size, more parts than examples, and replicas without any.
NUM_MICRO_BATCHES = 3
SUBJECTS = chosen(
    [
        (*subject, model, update)
        for subject in alone_and_uneven(same_training())
        for model, update in (
            ("mlp", "adamw"),
            ("convnet", "adamw"),
            ("convnet", "sgd"),
        )
    ],
    # SGD shows errors of scale, which clipping and Adam's quotient hide. The test of
    # dropout below trains under mirrored, with AdamW.
    [("tower", 3, "convnet", "sgd")],
)


@functools.lru_cache(maxsize=2)
def subject(
    strategy: str, replicas: int, model: str, update: str, micro_batches: int
) -> Subject:
    """Assembles a subject, and keeps it for the next layout to save a trace."""
    config = small_config(
        strategy=strategy,
        num_replicas=replicas,
        gradient_accumulation_steps=micro_batches,
        model=model,
        dtype="float64",
        **UPDATES[update],
    )
    return Subject.of(config)


@functools.cache
def reference(model: str, update: str) -> dict[str, Outcome]:
    whole = subject("one_device", 1, model, update, 1)
    return {name: whole.run(layout) for name, layout in LAYOUTS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("strategy", "replicas", "model", "update"), SUBJECTS)
def test_same_training_as_the_whole_batch(
    strategy: str, replicas: int, model: str, update: str, layout: str
) -> None:
    expected = reference(model, update)[layout]
    parts = subject(strategy, replicas, model, update, NUM_MICRO_BATCHES)
    outcome = parts.run(LAYOUTS[layout])
    if update == "adamw":
        assert expected.gradient_norm > 0.1, "the reference never clips"
    assert_same_training(outcome, expected, TOLERANCES["float64", update])
    assert outcome.applied_steps == outcome.step == 30


# Each replica of mirrored divides its rows as one device does. Updates of one device in
# micro-batches are in tests/updates/cases.py.
IN_FOUR_PARTS = [further("one_device", 1), ("mirrored", 2)]


@pytest.mark.parametrize(("strategy", "replicas"), IN_FOUR_PARTS)
@pytest.mark.parametrize("replayable", [further(False), True])
def test_dropout_of_micro_batches_is_that_of_as_many_replicas(
    replayable: bool, strategy: str, replicas: int
) -> None:
    """24 examples are in 2 x 2 parts; replayed numbers are as on one device."""

    def outcome(strategy: str, replicas: int, micro_batches: int) -> Outcome:
        config = small_config(
            strategy=strategy,
            num_replicas=replicas,
            gradient_accumulation_steps=micro_batches,
            model="mlp",
            dtype="float64",
            dropout=0.5,
            replayable_random_numbers=replayable,
            **UPDATES["adamw"],
        )
        return Subject.of(config).run(LAYOUTS["even"])

    expected = outcome("one_device", 1, 1) if replayable else outcome("tower", 4, 1)
    found = outcome(strategy, replicas, 4 // replicas)
    assert_same_training(found, expected, TOLERANCES["float64", "adamw"])


class Counter(keras.layers.Layer):
    """A layer that counts calls in an integer variable, as users' layers do."""

    def build(self, input_shape: Any) -> None:
        self.calls = self.add_weight(
            name="calls", shape=(), dtype="int64", initializer="zeros", trainable=False
        )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.calls.assign_add(1)
        return inputs


def normalized(
    strategy: str, replicas: int, micro_batches: int, jit_compile: str = "off"
) -> TrainingParts:
    """Assembles a normalized model on 26 examples: the last batch has 2, not 8."""
    features = np.random.default_rng(0).normal(3, 2, (26, 6)).astype(np.float32)
    return assemble_custom(
        strategy,
        replicas,
        lambda: [
            keras.layers.BatchNormalization(momentum=0.9),
            Counter(),
            keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.25)),
        ],
        features,
        gradient_accumulation_steps=micro_batches,
        global_batch_size=8,
        optimizer="sgd",
        learning_rate=0.05,
        dtype="float64",
        jit_compile=jit_compile,
    )


@functools.cache
def normalized_losses(
    strategy: str, replicas: int
) -> tuple[np.ndarray, keras.layers.BatchNormalization]:
    """Returns the losses of three steps without micro-batches, and the first layer."""
    assembly = normalized(strategy, replicas, 1)
    return train(assembly, 3)["loss"], assembly.model.layers[0]


@pytest.mark.parametrize(("strategy", "replicas"), IN_FOUR_PARTS)
@pytest.mark.parametrize("jit_compile", ["off", further("on")])
def test_normalization_is_that_of_as_many_replicas(
    strategy: str, replicas: int, jit_compile: str
) -> None:
    """Each micro-batch is normalized alone; statistics are of the global batch."""
    of_whole, expected = normalized_losses("one_device", 1)
    of_towers, _ = normalized_losses("tower", 4)
    parts = normalized(strategy, replicas, 4 // replicas, jit_compile=jit_compile)
    losses = train(parts, 3)["loss"]
    np.testing.assert_allclose(losses, of_towers, rtol=1e-12)
    assert not np.allclose(losses, of_whole, rtol=1e-6)
    statistics, counter = parts.model.layers[0], parts.model.layers[1]
    # The bound allows for the rounding of (m - old) / (1 - momentum).
    np.testing.assert_allclose(
        statistics.moving_mean.numpy(), expected.moving_mean.numpy(), rtol=1e-12
    )
    np.testing.assert_allclose(
        statistics.moving_variance.numpy(),
        expected.moving_variance.numpy(),
        rtol=1e-12,
    )
    assert int(counter.calls.numpy()) == 3
    for values in (w.numpy() for w in parts.model.weights):
        assert np.isfinite(values).all()


# tests/cluster/test_sparse_gradients.py adds up rows of micro-batches.
@pytest.mark.exhaustive
@pytest.mark.parametrize("update", ["sgd", "adagrad", "adamw"])
def test_sparse_gradients(update: str) -> None:
    config = clicks_config(
        update, strategy="tower", num_replicas=2, gradient_accumulation_steps=3
    )
    outcome = Subject.of(config).run(LAYOUTS["uneven"])
    assert_same_training(outcome, sparse_reference(update), BOUNDS[update])


@looks_at_every_operation
def test_no_operation_of_a_micro_batch_is_as_large_as_an_embedding() -> None:
    assert largest_tensor("sgd", gradient_accumulation_steps=2) < (NUM_ROWS, "")


def test_what_replicas_compute_together_is_refused() -> None:
    with pytest.raises(UsageError) as refusal:
        assemble_custom(
            "mirrored",
            2,
            lambda: [keras.layers.BatchNormalization(synchronized=True, name="bn")],
            np.ones([8, 2]),
            global_batch_size=8,
            gradient_accumulation_steps=2,
        )
    assert str(refusal.value) == (
        "--gradient_accumulation_steps=2 does not fit layer 'bn', whose "
        "synchronized=True normalizes over all replicas at once: leave the one or the "
        "other out."
    )


def test_shares_are_summed_over_replicas_once_an_update() -> None:
    """The sums are as many as without micro-batches, which add up in an inner loop."""

    def sums_outside_of_micro_batches(micro_batches: int) -> int:
        config = small_config(
            strategy="mirrored",
            num_replicas=2,
            model="mlp",
            gradient_accumulation_steps=micro_batches,
        )
        assembly = Subject.of(config).assembly
        batches = assembly.strategy.distribute(assembly.batches(0))
        graph = assembly.loop_function.trace(batches).as_graph_def()
        functions = {f.signature.name: f.node_def for f in graph.library.function}
        (of_spans,) = (node for node in graph.node if node.op == "While")
        span = functions[of_spans.attr["body"].func.name]
        (of_steps,) = (node for node in span if node.op == "While")
        body = functions[of_steps.attr["body"].func.name]
        loops = [node for node in body if "While" in node.op]
        num_loops = 2 if micro_batches > 1 else 0
        assert len(loops) == num_loops, "each replica has one loop of micro-batches"
        # The reduction of mirrored to one device consists of AddN operations.
        return sum(node.op == "AddN" for node in body)

    assert sums_outside_of_micro_batches(4) == sums_outside_of_micro_batches(1) > 0
