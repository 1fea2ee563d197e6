"""Tests of towers that do not wait for each other, and of reported staleness."""

import pathlib
import threading
from collections import Counter
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.types import StepResults, SummaryLevel
from tests import processes
from tests.conformance.custom import assemble_custom
from tests.conformance.harness import LAYOUTS, UPDATES, Subject, small_config
from tests.conformance.test_same_training import (
    TOLERANCES,
    assert_same_training,
    of_one_device,
)
from tests.event_files import read_events
from tests.markers import chosen, further
from trainers.config.config import Config
from trainers.experiments.verify.arms import is_comparable
from trainers.loop.parts import TrainingParts
from trainers.main import main

# Two threads meet in far less time; the limit lets a test fail that would hang.
PATIENCE_SECONDS = 60.0


class Calling(keras.layers.Layer):
    """A layer that calls a Python function in every step.

    The version of the weights is known before the call.
    """

    def __init__(self, function: Callable[[], None]):
        super().__init__()
        self._function = function

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        def called() -> np.ndarray:
            self._function()
            return np.zeros([], np.float32)

        with tf.control_dependencies([tf.numpy_function(called, [], tf.float32)]):
            return tf.identity(inputs)


def assemble_calling(function: Callable[[], None], towers: int) -> TrainingParts:
    return assemble_custom(
        "tower",
        towers,
        lambda: [Calling(function), keras.layers.Dense(1)],
        np.ones([64, 2], np.float32),
        update="async",
        global_batch_size=8,
    )


def steps_of(assembly: TrainingParts, count: int) -> StepResults:
    batches = assembly.strategy.distribute(assembly.batches(0))
    return assembly.loop_function(batches, count)


@pytest.mark.parametrize("update", chosen(UPDATES, ["adamw"]))
@pytest.mark.parametrize("layout", chosen(LAYOUTS, ["uneven"]))
def test_a_single_tower_is_one_device(update: str, layout: str) -> None:
    config = small_config(
        strategy="tower",
        update="async",
        num_replicas=1,
        model="mlp",
        dtype="float64",
        **UPDATES[update],
    )
    subject = Subject.of(config)
    expected = of_one_device("mlp", update, "float64", layout)
    for calls in (1, 10):
        outcome = subject.run(LAYOUTS[layout], calls=calls)
        assert_same_training(outcome, expected, TOLERANCES["float64", update])
        assert outcome.gradient_norm == pytest.approx(expected.gradient_norm)


@pytest.mark.parametrize("towers", [further(2), 3, further(4)])
def test_every_batch_is_computed_once_and_every_update_counted(towers: int) -> None:
    """The sums are in the order of the steps, whichever tower computes them.

    The loss is linear in the weights, so gradients do not depend on the weights, nor
    the last weights on the order of updates.
    """

    def assembled(strategy: str, replicas: int, **settings: object) -> TrainingParts:
        return assemble_custom(
            strategy,
            replicas,
            lambda: [keras.layers.Dense(1)],
            np.random.default_rng(0).normal(size=[97, 4]),
            loss=lambda labels, outputs: outputs[:, 0],
            metrics={"index": lambda labels, outputs: tf.cast(labels, tf.float32)},
            global_batch_size=8,
            dtype="float64",
            optimizer="sgd",
            train_steps=531,
            **settings,
        )

    assembly = assembled("tower", towers, update="async")
    batches = assembly.strategy.distribute(assembly.batches(0))
    calls = [
        assembly.loop_function(batches, count, observe)
        for count, observe in (
            (1, SummaryLevel.NONE),
            (30, SummaryLevel.NORMS),
            (500, SummaryLevel(2)),
        )
    ]
    assert [results.applied_steps for results in calls] == [1, 30, 500]
    assert [results.attempted_steps for results in calls] == [1, 30, 500]
    assert "gradient_norm" in calls[1].details
    assert int(assembly.step.numpy()) == 531
    assert int(assembly.optimizer.iterations.numpy()) == 531
    assert assembly.loop_function.num_traces() == 1
    alone = assembled("one_device", 1)
    expected = steps_of(alone, 531)
    for one, other in zip(assembly.model.weights, alone.model.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-11)
    for name in ("index", "examples"):
        got = np.concatenate([results.sums[name] for results in calls])
        np.testing.assert_array_equal(got, expected.sums[name])
    staleness = np.concatenate([results.staleness for results in calls])
    workers = np.concatenate([results.workers for results in calls])
    assert len(staleness) == len(workers) == 531
    assert staleness.min() >= 0
    assert set(workers) <= {f"tower-{index}" for index in range(towers)}
    assert staleness[0] == 0


def test_towers_compute_at_the_same_time_and_staleness_is_what_it_was() -> None:
    """No tower passes the barrier alone, so two gradients have the same version.

    One of the two is applied after the other: in each of eight rounds at least one
    update is stale. Sixteen steps are eight rounds of two.
    """
    barrier = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def meet() -> None:
        barrier.wait()

    results = steps_of(assemble_calling(meet, towers=2), 16)
    assert results.applied_steps == 16
    assert results.staleness is not None
    assert set(np.unique(results.workers)) == {"tower-0", "tower-1"}
    assert results.staleness.sum() >= 8
    # No tower gets more than one round ahead, which is two updates of the other tower.
    assert results.staleness.max() <= 2


def test_a_single_tower_is_never_stale() -> None:
    results = steps_of(assemble_calling(lambda: None, towers=1), 20)
    assert results.staleness is not None
    assert results.staleness.tolist() == [0] * 20
    assert set(np.unique(results.workers)) == {"tower-0"}


def test_what_fails_in_a_tower_is_raised_and_ends_the_others() -> None:
    calls = Counter[str]()

    def fail() -> None:
        calls["all"] += 1
        raise ValueError("no power")

    with pytest.raises(tf.errors.OpError, match="no power"):
        steps_of(assemble_calling(fail, towers=2), 1000)
    assert 1 <= calls["all"] <= 2


def test_a_loss_that_is_not_finite_ends_the_call_and_is_not_applied() -> None:
    features = np.ones([64, 4], np.float32)
    features[40] = np.nan
    assembly = assemble_custom(
        "tower",
        3,
        lambda: [keras.layers.Dense(3)],
        features,
        update="async",
        global_batch_size=8,
        train_steps=2000,
    )
    results = steps_of(assembly, 2000)
    # One of every eight batches has the row; each of the three towers may meet it once.
    assert 1 <= results.attempted_steps - results.applied_steps <= 3
    assert results.applied_steps == int(assembly.step.numpy())
    assert results.attempted_steps < 2000
    assert np.isnan(results.sums["loss"][-1])
    for weight in assembly.model.weights:
        assert np.isfinite(weight.numpy()).all()


def test_evaluation_counts_every_example_once() -> None:
    assembly = assemble_custom(
        "tower",
        3,
        lambda: [keras.layers.Dense(1)],
        np.zeros([37, 2], np.float32),
        metrics={"index": lambda labels, outputs: tf.cast(labels, tf.float32)},
        update="async",
        eval_global_batch_size=10,
    )
    for _ in range(2):
        assert assembly.evaluation.run().means["index"] == sum(range(37)) / 37
    assert assembly.evaluation.num_traces() == 1


def test_it_is_comparable_only_with_a_single_tower() -> None:
    for replicas, expected in ((1, True), (2, False), (None, False)):
        config = Config().replace(
            strategy="tower", update="async", num_replicas=replicas
        )
        assert is_comparable(config) == expected
        assert not config.traits.synchronous
        assert not config.traits.matches_one_device


def test_a_run_reports_staleness_by_tower_and_goes_on(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    flags = [
        *("main", "--strategy=tower", "--update=async", "--num_replicas=2"),
        *("--model=mlp", "--hidden_units=16", "--summary_every_steps=50"),
        "--eval_every_steps=none",
        *("--checkpoint_every_steps=60", f"--run_dir={run}"),
    ]
    assert main([*flags, "--train_steps=100"]) == 0
    assert main([*flags, "--train_steps=400", "--resume=auto"]) == 0
    result = processes.result_of(run)
    assert (result["steps"], result["attempted_steps"]) == (400, 400)
    assert result["examples_seen"] == 17 * 1438 + 9 * 64
    assert result["traits"]["synchronous"] is False
    staleness = result["staleness"]
    # The histogram has the steps of this process, which are those after the first run.
    assert sum(staleness["histogram"].values()) == 300
    by_worker = [Counter(w["histogram"]) for w in staleness["by_worker"].values()]
    assert sum(by_worker, Counter()) == Counter(staleness["histogram"])
    assert set(staleness["by_worker"]) == {"tower-0", "tower-1"}
    assert result["final"]["eval_accuracy"] > 0.8
    names = set(read_events(run / "tb" / "train").points)
    assert {"staleness/mean", "staleness/tower-0/p95", "staleness"} <= names


def test_a_run_that_diverges_ends_like_any_other(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = [
        *("main", "--strategy=tower", "--update=async", "--model=mlp"),
        *("--optimizer=sgd", "--learning_rate=1e30", "--train_steps=50"),
    ]
    assert main([*flags, f"--run_dir={run}"]) == 3
    (line,) = capfd.readouterr().err.splitlines()
    result = processes.result_of(run)
    assert result["status"] == "diverged"
    assert f"step {result['steps'] + 1}: training has diverged" in line
    assert "the loss is nan" in line or "the loss is inf" in line
    assert result["steps"] < result["attempted_steps"] <= result["steps"] + 2
