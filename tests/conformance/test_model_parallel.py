"""Checks that a model in stages trains the same, with each stage on its device."""

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.base import Examples, Settings
from strategies.common.errors import UsageError
from tests.conformance.custom import assemble_custom, assemble_model, train
from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Outcome,
    Subject,
    small_config,
)
from tests.conformance.test_same_training import TOLERANCES, assert_same_training
from tests.conformance.test_sparse_gradients import (
    NUM_ROWS,
    largest_tensor,
    looks_at_every_operation,
)
from tests.markers import further
from trainers.loop.parts import TrainingParts

FEATURES = np.random.default_rng(2).normal(1, 2, size=(30, 6)).astype(np.float32)


@functools.cache
def outcome(**settings: object) -> Outcome:
    config = small_config(
        **{"model": "convnet", "dtype": "float64", **UPDATES["adamw"], **settings}
    )
    return Subject.of(config).run(LAYOUTS["uneven"])


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"pipeline_stages": ("2",), "num_microbatches": 1},
            marks=pytest.mark.exhaustive,
        ),
        further({"pipeline_stages": ("4",), "num_microbatches": 3}),
        further({"pipeline_stages": ("pooling_1", "logits"), "num_microbatches": 5}),
        # The next test has these settings, and dropout.
        further(
            {"model": "mlp", "num_microbatches": 3, "gradient_accumulation_steps": 2}
        ),
        further({"num_microbatches": 3, "gradient_accumulation_steps": 2}),
        further({"num_microbatches": 3, "jit_compile": "on"}),
    ],
    ids=str,
)
def test_same_training_as_one_device(settings: dict[str, object]) -> None:
    found = outcome(strategy="model_parallel", **settings)
    expected = outcome(strategy="one_device", model=settings.get("model", "convnet"))
    tolerance = TOLERANCES["float64", "adamw"]
    assert_same_training(found, expected, tolerance)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=tolerance)


@pytest.mark.parametrize("replayable", [further(False), True])
def test_dropout_is_that_of_as_many_replicas(replayable: bool) -> None:
    """No stage draws numbers again, and all stages of a micro-batch use the same.

    24 examples in 2 rounds of 3 micro-batches have 4 each. The last batch has
    micro-batches without any.
    """
    rounds = 2 if replayable else 1
    stages = {"num_microbatches": 3, "gradient_accumulation_steps": rounds}
    shared = {"model": "mlp", "dropout": 0.5, "replayable_random_numbers": replayable}
    parts = {"strategy": "tower", "num_replicas": 3}
    found = outcome(strategy="model_parallel", **stages, **shared)
    expected = outcome(
        **({"strategy": "one_device"} if replayable else parts), **shared
    )
    tolerance = TOLERANCES["float64", "adamw"]
    assert_same_training(found, expected, tolerance)
    # Clipping and Adam hide a wrong scale.
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=tolerance)


class Noise(keras.layers.Layer):
    """A layer whose random numbers are the state of no layer."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + tf.random.normal(tf.shape(inputs), dtype=inputs.dtype)


@pytest.mark.parametrize("stages", [("second",), further(("third",))])
def test_random_numbers_of_tensorflow_do_not_depend_on_stages(
    stages: tuple[str, ...],
) -> None:
    def layers() -> list[keras.layers.Layer]:
        last = keras.layers.Dense(3)
        return [Noise(), Noise(name="second"), Noise(name="third"), last]

    def losses(strategy: str, replicas: int, **settings: Any) -> np.ndarray:
        settings |= {"global_batch_size": 8, "dtype": "float64"}
        made = assemble_custom(strategy, replicas, layers, FEATURES, **settings)
        return train(made, 3)["loss"]

    got = losses("model_parallel", 1, pipeline_stages=stages, num_microbatches=2)
    np.testing.assert_allclose(got, losses("tower", 2), rtol=1e-10)


def residual(data: Examples, settings: Settings) -> keras.Model:
    """Builds a model whose tensors cross several borders and have several users.

    This holds for any choice of stages. One layer has state, and the first layer of a
    separate branch has a penalty.
    """
    inputs = keras.Input(data.input_shape, name="inputs")
    first = keras.layers.Dense(6, activation="tanh", name="first")(inputs)
    side = keras.layers.Dense(
        6, name="side", kernel_regularizer=keras.regularizers.L2(0.25)
    )(inputs)
    second = keras.layers.BatchNormalization(name="second")(first)
    added = keras.layers.Add(name="added")([second, first, inputs])
    third = keras.layers.Dense(6, activation="tanh", name="third")(added)
    merged = keras.layers.Add(name="merged")([third, first, side, inputs])
    outputs = keras.layers.Dense(3, name="logits")(merged)
    return keras.Model(inputs, outputs)


def assemble_residual(
    strategy: str, replicas: int = 1, **settings: Any
) -> TrainingParts:
    return assemble_model(
        strategy,
        replicas,
        residual,
        FEATURES,
        global_batch_size=8,
        dtype="float64",
        optimizer="adamw",
        learning_rate=0.01,
        clip_global_norm=0.5,
        **settings,
    )


@functools.cache
def residual_in_stages(*stages: str) -> TrainingParts:
    return assemble_residual(
        "model_parallel", pipeline_stages=stages, num_microbatches=2
    )


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param(("second",), marks=pytest.mark.exhaustive),
        pytest.param(("second", "third"), marks=pytest.mark.exhaustive),
        ("second", "added", "merged"),
    ],
    ids=str,
)
def test_connections_across_borders(stages: tuple[str, ...]) -> None:
    """Compares with two towers, which normalize the same rows as two micro-batches."""
    expected = assemble_residual("tower", 2)
    assembly = residual_in_stages(*stages)
    want, got = train(expected, 6), train(assembly, 6)
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-10)
    for weight, reference in zip(
        assembly.model.weights, expected.model.weights, strict=True
    ):
        np.testing.assert_allclose(
            weight.numpy(), reference.numpy(), rtol=1e-8, atol=1e-10
        )
    means = [a.evaluation.run().means["loss"] for a in (assembly, expected)]
    assert means[0] == pytest.approx(means[1], rel=1e-8)


def test_variables_and_operations_are_on_the_device_of_their_stage() -> None:
    """The variables are weights and the state of layers and of the optimizer.

    The traced graph has the devices of calls, which the called operations follow.
    """
    assembly = residual_in_stages("second", "added", "merged")
    # `side`, which begins a branch, is as far from the end as `third`.
    device_of = {"first": 0, "second": 1, "third": 2, "side": 2, "logits": 3}
    for variable in assembly.model.variables:
        index = device_of[variable.path.split("/")[0]]
        assert variable.value.device.endswith(f"CPU:{index}"), variable.path
    slots = [v for v in assembly.optimizer.variables if "momentum" in v.path]
    assert len(slots) == len(assembly.model.trainable_variables)
    for slot, variable in zip(slots, assembly.model.trainable_variables, strict=True):
        assert slot.value.device == variable.value.device, slot.path
    batches = assembly.strategy.distribute(assembly.batches(0))
    graph = assembly.loop_function.trace(batches).as_graph_def()
    stages = set()
    for function in graph.library.function:
        for node in function.node_def:
            stage = re.search(r"stage_(\d)_(?:forward|backward)_\d/", node.name)
            if stage is not None and "PartitionedCall" in node.op:
                assert node.device.endswith(f"CPU:{stage[1]}"), node.name
                stages.add(stage[0].rstrip("0123456789/"))
    directions = ("forward_", "backward_")
    assert stages == {f"stage_{s}_{d}" for s in range(4) for d in directions}


@looks_at_every_operation
def test_no_operation_of_a_stage_is_as_large_as_an_embedding() -> None:
    largest = largest_tensor(
        "sgd", strategy="model_parallel", pipeline_stages=("flatten",)
    )
    assert largest < (NUM_ROWS, "")


@pytest.mark.exhaustive
def test_mixed_precision_crosses_borders() -> None:
    """bfloat16 rounds to 8 bits, so this test can only find a wrong factor."""
    losses = [
        outcome(strategy=strategy, dtype="mixed_bfloat16", model="mlp").losses
        for strategy in ("model_parallel", "one_device")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.03)


class Slow(keras.layers.Layer):
    """A layer that sleeps in every pass, twice as long backward as forward."""

    def __init__(self, seconds: float, **settings: Any):
        super().__init__(**settings)
        self._seconds = seconds

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def delay(values: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
            return slept(values, self._seconds), lambda g: slept(g, 2 * self._seconds)

        return tf.ensure_shape(delay(inputs), inputs.shape)


def slept(values: tf.Tensor, seconds: float) -> tf.Tensor:
    """Returns the values after a time in seconds."""

    def sleep(array: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return array

    # TensorFlow would run stateful functions one at a time, in the order of creation.
    return tf.numpy_function(sleep, [values], values.dtype, stateful=False)


@pytest.mark.parametrize(
    ("seconds", "num_microbatches", "expected"),
    [
        further((0.05, 0.05), 1, (1 / 2, 1 / 2)),
        further((0.05, 0.05), 4, (1 / 5, 1 / 5)),
        further((0.05, 0.05, 0.05), 2, (2 / 4, 2 / 4, 2 / 4)),
        # The pipeline takes 39 times the forward pass of the fast stage; the fast stage
        # works for 12 of these and the slow one for 36.
        ((0.02, 0.06), 4, (1 - 4 / 13, 1 - 12 / 13)),
    ],
)
def test_idle_shares_are_those_of_theory(
    seconds: tuple[float, ...], num_microbatches: int, expected: tuple[float, ...]
) -> None:
    """All other work on a micro-batch takes a few milliseconds, hence the bound."""
    assembly = assemble_custom(
        "model_parallel",
        1,
        lambda: [
            layer
            for index, duration in enumerate(seconds)
            for layer in (
                keras.layers.Dense(4, name=f"stage_{index}"),
                Slow(duration, name=f"slow_{index}"),
            )
        ],
        FEATURES,
        global_batch_size=8,
        pipeline_stages=tuple(f"stage_{index}" for index in range(1, len(seconds))),
        num_microbatches=num_microbatches,
    )
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 4)
    assert results.stage_busy_seconds is not None
    assert results.pipeline_seconds is not None
    busy = np.median(results.stage_busy_seconds, axis=0)
    idle = 1 - busy / np.median(results.pipeline_seconds)
    np.testing.assert_allclose(idle, expected, atol=0.1)


def test_models_of_one_layer_are_one_stage_unless_more_are_asked_for() -> None:
    def assemble(**settings: Any) -> TrainingParts:
        layers = [keras.layers.Dense(3)]
        return assemble_custom(
            "model_parallel", 1, lambda: layers, FEATURES, **settings
        )

    pipeline = assemble().pipeline
    assert pipeline is not None
    assert len(pipeline.stages) == 1
    with pytest.raises(UsageError, match="more than the 1 parts"):
        assemble(pipeline_stages=("2",))
