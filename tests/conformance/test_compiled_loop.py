"""Checks that the loop compiled by XLA trains as the loop that is not compiled."""

import itertools
import json
import pathlib
from collections.abc import Sequence

import keras
import numpy as np
import pytest

from models.base import Examples, Settings
from strategies.cluster.spec import Cluster
from strategies.common.types import SummaryLevel
from tests import processes
from tests.conformance.custom import assemble_custom, assemble_model, train
from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Outcome,
    Subject,
    small_config,
)
from tests.conformance.test_same_training import TOLERANCES, assert_same_training
from tests.markers import chosen
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.compilation import Scope
from trainers.loop.parts import TrainingParts


def parts_of(jit_compile: str, **settings: object) -> TrainingParts:
    config = small_config(
        strategy="one_device", model="mlp", jit_compile=jit_compile, **settings
    )
    return assemble(config, create_strategy(config, Cluster()))


@pytest.mark.parametrize(
    ("layout", "update"),
    chosen(itertools.product(("even", "uneven"), UPDATES), [("uneven", "adamw")]),
)
def test_same_training_as_uncompiled(update: str, layout: str) -> None:
    def outcome(jit_compile: str) -> Outcome:
        parts = parts_of(jit_compile, dtype="float64", **UPDATES[update])
        return Subject(parts).run(LAYOUTS[layout])

    assert_same_training(outcome("on"), outcome("off"), TOLERANCES["float64", update])


def assert_loop_trains_as(
    compiled: TrainingParts, plain: TrainingParts, atol: float = 0.0
) -> None:
    """Asserts equal losses and weights of five steps, of which XLA compiles the loop.

    Args:
      compiled: Run whose loop is compiled.
      plain: The same run without XLA.
      atol: Absolute difference that weights may have.
    """
    assert compiled.compilation.scope is Scope.LOOP
    np.testing.assert_allclose(
        train(compiled, 5)["loss"], train(plain, 5)["loss"], rtol=1e-12
    )
    for one, other in zip(compiled.model.weights, plain.model.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-10, atol=atol)


def test_an_embedding_trains_as_uncompiled() -> None:
    """Its gradient is dense under XLA, and has only the used rows without."""

    def parts(jit_compile: str) -> TrainingParts:
        return assemble_custom(
            "one_device",
            1,
            lambda: [
                keras.layers.Embedding(9, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ],
            np.random.default_rng(0).integers(7, size=[20, 3]),
            global_batch_size=8,
            optimizer="adam",
            dtype="float64",
            jit_compile=jit_compile,
        )

    assert_loop_trains_as(parts("on"), parts("off"))


def test_a_smaller_batch_has_no_further_rows() -> None:
    """Activations are penalized by a mean of rows, and rows of zeros have no shares."""

    def build(data: Examples, settings: Settings) -> keras.Model:
        inputs = keras.Input(data.input_shape)
        shares = inputs / keras.ops.sum(inputs, axis=-1, keepdims=True)
        centered = shares - keras.ops.mean(shares, axis=0)
        outputs = keras.layers.Dense(2, activity_regularizer="l2")(centered)
        return keras.Model(inputs, outputs)

    def parts(jit_compile: str) -> TrainingParts:
        return assemble_model(
            "one_device",
            1,
            build,
            np.random.default_rng(0).uniform(1, 2, size=[10, 3]),
            global_batch_size=8,
            # Adam would enlarge the rounding errors of a gradient of zero.
            optimizer="sgd",
            dtype="float64",
            jit_compile=jit_compile,
        )

    # The gradient of the bias is zero but for rounding.
    assert_loop_trains_as(parts("auto"), parts("off"), atol=1e-15)


# The test above trains embeddings; a test below shows that `auto` compiles this model.
@pytest.mark.exhaustive
@pytest.mark.parametrize("update", ["sgd", "adam"])
def test_a_transformer_trains_as_uncompiled(update: str) -> None:
    """Its attention needs more operations of XLA than other models."""

    def weights(jit_compile: str) -> list[np.ndarray]:
        config = small_config(
            strategy="one_device",
            model="examples.text_classifier:model",
            dataset="examples.text_classifier:reviews",
            optimizer=update,
            global_batch_size=16,
            jit_compile=jit_compile,
        )
        parts = assemble(config, create_strategy(config, Cluster()))
        is_loop = parts.compilation.scope is Scope.LOOP
        assert is_loop == (jit_compile == "auto"), parts.compilation
        batches = parts.strategy.distribute(parts.batches(0))
        assert parts.loop_function(batches, 10).applied_steps == 10
        return [variable.numpy() for variable in parts.model.trainable_variables]

    for compiled, plain in zip(weights("auto"), weights("off"), strict=True):
        # In 10 steps of float32 they differ by 1e-6 here; without one row, by 1e-3.
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)


def weights_after(parts: TrainingParts, calls: Sequence[int]) -> list[np.ndarray]:
    batches = parts.strategy.distribute(parts.batches(0))
    for count in calls:
        results = parts.loop_function(batches, count)
        assert results.applied_steps == count
        assert len(results.step_seconds) == len(results.input_seconds) == count
        assert (results.step_seconds > 0).all()
    assert parts.loop_function.num_traces() == 1
    return [variable.numpy() for variable in parts.model.variables]


def test_no_bit_depends_on_how_steps_fall_into_calls() -> None:
    """A call may end within a span or take several spans; an epoch has nine steps."""
    parts = parts_of("on", num_examples=150, global_batch_size=16)
    variables = [parts.step, *parts.model.variables, *parts.optimizer.variables]
    initial = [variable.numpy() for variable in variables]
    expected = weights_after(parts, [20])
    for variable, value in zip(variables, initial, strict=True):
        variable.assign(value)
    found = weights_after(parts, [1, 1, 5, 13])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_observed_step_is_described_as_without_xla() -> None:
    found = {}
    for jit_compile in ("on", "off"):
        parts = parts_of(jit_compile, dtype="float64")
        batches = parts.strategy.distribute(parts.batches(0))
        results = parts.loop_function(batches, 5, SummaryLevel.HISTOGRAMS)
        found[jit_compile] = results.details
        assert not parts.loop_function(batches, 1).details
    assert set(found["on"]) == set(found["off"])
    assert {"gradient_norm", "weight_norm"} < set(found["on"])
    for name, values in found["on"].items():
        # The bound is that of weights under SGD; the edges of buckets are gradients.
        np.testing.assert_allclose(values, found["off"][name], rtol=1e-9, atol=1e-15)


def test_nothing_that_is_not_finite_is_applied() -> None:
    features = np.ones([64, 3], np.float32)
    features[40] = np.nan
    found = {}
    for jit_compile in ("on", "off"):
        parts = assemble_custom(
            "one_device",
            1,
            lambda: [keras.layers.Dense(2, kernel_initializer="ones")],
            features,
            global_batch_size=8,
            optimizer="adam",
            jit_compile=jit_compile,
        )
        is_loop = parts.compilation.scope is Scope.LOOP
        assert is_loop == (jit_compile == "on")
        batches = parts.strategy.distribute(parts.batches(0))
        results = parts.loop_function(batches, 8)
        assert parts.applied_steps() == results.applied_steps < 8
        assert results.first_not_finite is not None
        variables = [*parts.model.variables, *parts.optimizer.variables]
        values = [variable.numpy() for variable in variables]
        found[jit_compile] = results.applied_steps, results.first_not_finite, values
    assert found["on"][:2] == found["off"][:2]
    for compiled, plain in zip(found["on"][2], found["off"][2], strict=True):
        assert np.isfinite(compiled).all()
        np.testing.assert_allclose(compiled, plain, rtol=1e-5)


@pytest.mark.slow
def test_xla_compiles_one_program_for_all_calls(tmp_path: pathlib.Path) -> None:
    """The run has an uneven last batch, calls of different lengths, and summaries."""
    done = processes.run(
        *("--model=mlp", "--hidden_units=8", "--train_steps=60", "--jit_compile=auto"),
        *("--summary_every_steps=7", *processes.NO_EVALUATION),
        f"--run_dir={tmp_path / 'run'}",
        XLA_FLAGS=f"--xla_dump_to={tmp_path / 'dump'}",
    )
    assert done.returncode == 0, done.stderr
    compiled = processes.result_of(tmp_path / "run")["compilation"]
    assert compiled == {"scope": "the loop", "reason": "dense layers on one CPU"}
    programs = list((tmp_path / "dump").glob("*before_optimizations.txt"))
    assert len(programs) == 1, programs


@pytest.mark.parametrize(
    ("settings", "scope", "words"),
    [
        ({}, Scope.LOOP, "dense layers on one CPU"),
        (
            {
                "model": "examples.text_classifier:model",
                "dataset": "examples.text_classifier:reviews",
            },
            Scope.LOOP,
            "dense layers on one CPU",
        ),
        ({"model": "convnet"}, Scope.NOTHING, "(Conv2D) is not dense"),
        ({"dropout": 0.5}, Scope.NOTHING, "'dropout_1' (Dropout) is not dense"),
        ({"jit_compile": "off"}, Scope.NOTHING, "--jit_compile=off"),
        ({"jit_compile": "on"}, Scope.LOOP, "--jit_compile=on"),
        ({"strategy": "mirrored"}, Scope.NOTHING, "communicate"),
        ({"dtype": "mixed_bfloat16"}, Scope.NOTHING, "computes in bfloat16"),
        ({"gradient_accumulation_steps": 2}, Scope.NOTHING, "micro-batches"),
        (
            {"strategy": "tower", "num_replicas": 2, "jit_compile": "on"},
            Scope.REPLICA,
            "--jit_compile=on",
        ),
    ],
)
def test_auto_decides_by_model_device_and_strategy(
    settings: dict[str, object], scope: Scope, words: str
) -> None:
    chosen = {"model": "mlp", "jit_compile": "auto", **settings}
    config = small_config(**chosen).with_given(**settings)
    decided = assemble(config, create_strategy(config, Cluster())).compilation
    assert decided.scope is scope, decided
    assert words in decided.reason


@pytest.mark.slow
def test_a_resumed_run_keeps_the_decision_and_every_bit(tmp_path: pathlib.Path) -> None:
    flags = (
        *("--model=mlp", "--hidden_units=8", "--train_steps=40"),
        *("--checkpoint_every_steps=15", *processes.NO_EVALUATION),
        "--set=report.histogram_every_steps=none",
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = processes.train(whole, *flags)
    processes.copy_up_to(15, whole, parts)
    config = json.loads((parts / "config.json").read_text(encoding="utf-8"))
    assert config["model"]["jit_compile"] == "on"
    resumed = processes.train(parts, *flags, "--resume=auto")
    assert resumed["compilation"] == {
        "scope": "the loop",
        "reason": "as when the run began",
    }
    assert resumed["weights_sha256"] == expected["weights_sha256"]
