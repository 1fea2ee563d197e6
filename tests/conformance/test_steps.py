"""Checks that a call runs exactly the requested steps, from a single trace."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.types import SummaryLevel
from tests import processes
from tests.conformance.custom import assemble_custom
from tests.conformance.harness import (
    LAYOUTS,
    Outcome,
    Subject,
    alone_and_uneven,
    in_one_process,
    small_config,
    subjects,
    uneven,
)
from tests.markers import chosen

# Three replicas stand for any number of several replicas in these tests.
ALONE_AND_UNEVEN = chosen(alone_and_uneven(subjects()), uneven(subjects()))
# Replicas in one loop. Replicas that average have a loop each, and
# test_parameter_averaging.py compares the steps of their calls with NumPy.
MIRRORED = chosen(alone_and_uneven(subjects()), [("mirrored", 3)])
# Replicas in one loop, and replicas of which each has a loop.
SEVERAL_REPLICAS = chosen(
    alone_and_uneven(subjects()), [("mirrored", 3), ("parameter_averaging", 3)]
)


@pytest.mark.parametrize(("strategy", "replicas"), MIRRORED)
def test_n_steps_are_n_applied_updates_from_one_trace(
    strategy: str, replicas: int
) -> None:
    config = small_config(strategy=strategy, num_replicas=replicas, model="mlp")
    subject = Subject.of(config)
    assembly = subject.assembly
    batches = assembly.strategy.distribute(assembly.batches(0))
    assembly.loop_function.trace(batches)
    assert int(assembly.step.numpy()) == 0
    for layout in LAYOUTS.values():
        outcomes = []
        for calls in (1, 5):
            outcome = subject.run(layout, num_steps=30, calls=calls)
            assert outcome.applied_steps == outcome.step == 30
            assert int(assembly.optimizer.iterations.numpy()) == 30
            outcomes.append(outcome)
        assert_equal_bits(*outcomes)
    for observe in SummaryLevel:
        assembly.loop_function(batches, 1, observe)
    assert assembly.loop_function.num_traces() == 1
    assembly.evaluation.run()
    assembly.evaluation.run()
    assert assembly.evaluation.num_traces() == 1


def assert_equal_bits(outcome: Outcome, expected: Outcome) -> None:
    np.testing.assert_array_equal(outcome.losses, expected.losses)
    for got, want in zip(outcome.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("strategy", "replicas"), alone_and_uneven(subjects()))
def test_how_steps_are_divided_into_calls_does_not_matter(
    strategy: str, replicas: int
) -> None:
    config = small_config(strategy=strategy, num_replicas=replicas, model="convnet")
    subject = Subject.of(config)
    at_once = subject.run(LAYOUTS["uneven"], calls=1)
    assert_equal_bits(subject.run(LAYOUTS["uneven"], calls=30), at_once)


@pytest.mark.parametrize(("strategy", "replicas"), SEVERAL_REPLICAS)
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(
    strategy: str, replicas: int
) -> None:
    features = np.ones([64, 4], np.float32)
    features[40] = np.nan
    assembly = assemble_custom(
        strategy,
        replicas,
        lambda: [keras.layers.Dense(3)],
        features,
        global_batch_size=8,
        optimizer="adam",
    )
    batches = list(assembly.batches(0).dataset(0, 1).take(8))
    (bad,) = (i for i, batch in enumerate(batches) if 40 in batch.indices.numpy())
    iterator = assembly.strategy.distribute(assembly.batches(0))
    if bad:
        assert assembly.loop_function(iterator, bad).applied_steps == bad
    before = [
        v.numpy() for v in (*assembly.model.weights, *assembly.optimizer.variables)
    ]
    results = assembly.loop_function(iterator, 10)
    assert results.applied_steps == 0
    assert len(results.sums["loss"]) == 1
    assert np.isnan(results.sums["loss"][0])
    assert int(assembly.step.numpy()) == bad
    after = [*assembly.model.weights, *assembly.optimizer.variables]
    for got, want in zip(after, before, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


# One function of all strategies decides what a number that is not finite means.
@pytest.mark.parametrize(("strategy", "replicas"), MIRRORED)
def test_a_metric_that_is_not_finite_changes_nothing_else(
    strategy: str, replicas: int
) -> None:
    """A metric is infinite for the last label; as in `fit`, training continues."""
    assembly = assemble_custom(
        strategy,
        replicas,
        lambda: [keras.layers.Dense(3)],
        np.ones([43, 4], np.float32),
        metrics={
            "odd": lambda labels, outputs: 1 / (42 - tf.cast(labels, tf.float32)),
            "one": lambda labels, outputs: tf.ones_like(outputs[:, 0]),
        },
        global_batch_size=8,
        eval_global_batch_size=8,
    )
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 12)
    assert results.applied_steps == 12
    assert np.isfinite(results.sums["loss"]).all()
    assert np.isinf(results.sums["odd"]).any()
    means = assembly.evaluation.run().means
    assert (means["odd"], means["one"]) == (np.inf, 1.0)


@pytest.mark.parametrize(("strategy", "replicas"), MIRRORED)
def test_an_example_that_is_not_finite_is_evaluated_with_all_others(
    strategy: str, replicas: int
) -> None:
    features = np.ones([37, 2], np.float32)
    features[3] = np.nan
    assembly = assemble_custom(
        strategy,
        replicas,
        lambda: [keras.layers.Dense(1)],
        features,
        metrics={"index": lambda labels, outputs: tf.cast(labels, tf.float32)},
        eval_global_batch_size=10,
    )
    means = assembly.evaluation.run().means
    assert np.isnan(means["loss"])
    assert means["index"] == sum(range(37)) / 37


@pytest.mark.parametrize(("strategy", "replicas"), ALONE_AND_UNEVEN)
def test_evaluation_counts_every_example_once(strategy: str, replicas: int) -> None:
    """37 = 3 x 10 + 7 examples are held out; the metric of each is its index."""
    assembly = assemble_custom(
        strategy,
        replicas,
        lambda: [keras.layers.Dense(1)],
        np.zeros([37, 2], np.float32),
        metrics={"index": lambda labels, outputs: tf.cast(labels, tf.float32)},
        eval_global_batch_size=10,
    )
    assert assembly.evaluation.run().means["index"] == sum(range(37)) / 37


def step_of_loop(strategy: str, replicas: int) -> tuple[list[Any], dict[str, Any]]:
    """Returns the nodes of one step of the mlp, and of all functions by name."""
    config = small_config(strategy=strategy, num_replicas=replicas, model="mlp")
    assembly = Subject.of(config).assembly
    batches = assembly.strategy.distribute(assembly.batches(0))
    graph = assembly.loop_function.trace(batches).as_graph_def()
    functions = {f.signature.name: f.node_def for f in graph.library.function}

    def body(nodes: Iterable[Any]) -> list[Any]:
        (loop,) = (node for node in nodes if node.op == "While")
        return list(functions[loop.attr["body"].func.name])

    # The loop over steps is inside of the loop over spans.
    return body(body(graph.node)), functions


def test_what_a_step_does_not_do_costs_it_next_to_nothing() -> None:
    """TensorFlow visits every operation of a branch that is not taken."""
    step, functions = step_of_loop("one_device", 1)
    sizes = sorted(
        len(functions[node.attr[branch].func.name])
        for node in step
        if node.op in ("If", "StatelessIf")
        for branch in ("then_branch", "else_branch")
    )
    # The branches: no summary, summary, no update; the largest is the usual update.
    assert len(sizes) == 4
    assert max(sizes[:3]) <= 6 < sizes[3]


def test_small_tensors_of_mirrored_replicas_are_summed_in_one() -> None:
    """There is one sum of gradients, in single precision, and one of all metrics."""
    step, _ = step_of_loop("mirrored", 2)
    assert sum(node.op == "AddN" for node in step) == 2


def test_nothing_is_left_after_close() -> None:
    """It runs in another process: TensorFlow's thread pools outlive strategies."""
    done = processes.run_module("tests.conformance.closed_strategies")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        f"{strategy} left: [] []" for strategy in in_one_process()
    ]
