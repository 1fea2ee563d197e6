"""Checks that gradients of embeddings stay sparse without changing the training."""

import functools
from typing import Any

import pytest
import tensorflow as tf

# It sees the real shapes of all computed tensors, which graphs do not know.
from tensorflow.python.framework import op_callbacks

from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Outcome,
    Subject,
    same_training,
    small_config,
)
from tests.conformance.test_same_training import TOLERANCES, assert_same_training
from tests.markers import chosen, further
from trainers.config.config import Config
from trainers.loop.parts import TrainingParts

# Every step clips, so that a norm that counts a row twice changes the training.
ADAGRAD = {"optimizer": "adagrad", "learning_rate": 0.1, "clip_global_norm": 0.05}
EMBEDDING_UPDATES = {**UPDATES, "adagrad": ADAGRAD}
# Adagrad divides by a root that is never below the root of 0.1, so its bound is SGD's.
BOUNDS = {
    "sgd": TOLERANCES["float64", "sgd"],
    "adagrad": TOLERANCES["float64", "sgd"],
    "adamw": TOLERANCES["float64", "adamw"],
}
# 97 = 4 x 24 + 1: only one replica gets an example of the last batch. And 24 examples
# of 7 categories use most of them several times, on every replica.
LAYOUT = LAYOUTS["uneven"]


def clicks_config(update: str, **settings: object) -> Config:
    defaults: dict[str, object] = {
        "dataset": "clicks",
        "model": "wide_embedding",
        "dtype": "float64",
        "num_columns": 3,
        "num_categories": 7,
        "embedding_dimension": 4,
        "embedding_shards": 2,
        **EMBEDDING_UPDATES[update],
    }
    return small_config(**{**defaults, **settings})


@functools.cache
def reference(update: str) -> Outcome:
    return Subject.of(clicks_config(update)).run(LAYOUT)


# A strategy sums rows alike for every update: each is once in `make test`.
@pytest.mark.parametrize(
    ("strategy", "replicas", "update"),
    chosen(
        [
            (name, count, update)
            for name, count in same_training()
            if count in (2, 3)
            for update in EMBEDDING_UPDATES
        ],
        [("mirrored", 3, "adagrad"), ("tower", 3, "adamw")],
    ),
)
def test_same_training_as_one_device(strategy: str, replicas: int, update: str) -> None:
    config = clicks_config(update, strategy=strategy, num_replicas=replicas)
    outcome = Subject.of(config).run(LAYOUT)
    clips_at = config.optimizer.clip_global_norm or 0
    assert reference(update).gradient_norm > clips_at, "the reference never clips"
    assert_same_training(outcome, reference(update), BOUNDS[update])
    assert outcome.gradient_norm == pytest.approx(
        reference(update).gradient_norm, rel=BOUNDS[update]
    )


@pytest.mark.parametrize("update", [further("sgd"), "adagrad", further("adamw")])
def test_stages_are_the_same_training(update: str) -> None:
    config = clicks_config(update, strategy="model_parallel", num_microbatches=3)
    outcome = Subject.of(config).run(LAYOUT)
    assert_same_training(outcome, reference(update), BOUNDS[update])
    assert outcome.gradient_norm == pytest.approx(
        reference(update).gradient_norm, rel=BOUNDS[update]
    )


@pytest.mark.parametrize("update", [further("sgd"), "adagrad"])
def test_dense_gradients_are_the_same_training(update: str) -> None:
    outcome = Subject.of(clicks_config(update, sparse_gradients=False)).run(LAYOUT)
    assert_same_training(outcome, reference(update), BOUNDS[update])


@pytest.mark.parametrize("shards", [further(1), 5])
def test_the_number_of_shards_does_not_change_the_training(shards: int) -> None:
    outcome = Subject.of(clicks_config("adagrad", embedding_shards=shards)).run(LAYOUT)
    assert outcome.losses == pytest.approx(
        reference("adagrad").losses, rel=BOUNDS["adagrad"]
    )


# TensorFlow warns that input pipelines do not run eagerly. The test does not need them.
looks_at_every_operation = pytest.mark.filterwarnings("ignore:Even though the")

# Rows of two columns: far more than the numbers in any other tensor of this model.
NUM_ROWS = 2 * 50_000


def largest_tensor(update: str, **settings: object) -> tuple[int, str]:
    """Returns the number of elements of the largest tensor, and its operation.

    All tensors of three steps count.
    """
    config = clicks_config(
        update, num_columns=2, num_categories=NUM_ROWS // 2, **settings
    )
    assembly = Subject.of(config).assembly
    batches = assembly.strategy.distribute(assembly.batches(0))
    made = [(0, "nothing")]

    def look(
        operation: str | bytes,
        inputs: Any,
        attributes: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        # Only the input pipeline still runs as a graph, which has no tensors to look
        # at.
        if graph is None:
            name = tf.compat.as_str(operation)
            made.extend((tensor.shape.num_elements(), name) for tensor in outputs)

    tf.config.run_functions_eagerly(True)
    op_callbacks.add_op_callback(look)
    try:
        assembly.loop_function(batches, 3)
    finally:
        op_callbacks.remove_op_callback(look)
        tf.config.run_functions_eagerly(False)
    return max(made)


@looks_at_every_operation
@pytest.mark.parametrize("update", ["sgd", "adagrad"])
def test_no_operation_of_a_step_is_as_large_as_the_table(update: str) -> None:
    assert largest_tensor(update) < (NUM_ROWS, "")


@looks_at_every_operation
def test_bfloat16_converts_no_more_than_the_rows_it_uses() -> None:
    assert largest_tensor("sgd", dtype="mixed_bfloat16") < (NUM_ROWS, "")


@looks_at_every_operation
@pytest.mark.parametrize(
    ("update", "settings"),
    [
        ("sgd", {"sparse_gradients": False}),
        ("sgd", {"weight_decay": 0.1}),
        ("adamw", {}),
    ],
)
def test_what_passes_over_all_rows_is_noticed(
    update: str, settings: dict[str, object]
) -> None:
    """The tests above could not fail without this."""
    assert largest_tensor(update, **settings) >= (NUM_ROWS, "")


def assembly_of(**settings: object) -> TrainingParts:
    return Subject.of(clicks_config("sgd", **settings)).assembly


def test_gradient_bytes_are_those_of_the_rows_that_a_replica_uses() -> None:
    # The tables have 3,000 rows of 4 float64. A batch of 8 uses at most 24 of them,
    # each with its int64 index. The dense layers have 12 x 16 + 16 and 16 x 2 + 2
    # weights.
    tower = 8 * (12 * 16 + 16 + 16 * 2 + 2)
    size = {"num_categories": 1000, "global_batch_size": 8}
    assert assembly_of(**size).gradient_bytes() == tower + 24 * (4 * 8 + 8)
    dense = assembly_of(**size, sparse_gradients=False)
    assert dense.gradient_bytes() == tower + 3000 * 4 * 8
    halves = assembly_of(**size, strategy="tower", num_replicas=2)
    assert halves.gradient_bytes() == tower + 12 * (4 * 8 + 8)
