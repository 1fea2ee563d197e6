"""Checks the statistics that --set=report.replica_statistics=true reports."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.types import (
    Batch,
    ReplicaOutputs,
    StepResults,
    SummaryLevel,
    SyncedFlags,
)
from tests.conformance.custom import assemble_custom
from tests.conformance.harness import in_one_process
from trainers.config.config import Config
from trainers.model.gradient_noise_scale import ReplicaStatistics, WithStatistics
from trainers.run_dir.train_state import check_state

DIVIDE = [
    name
    for name in in_one_process()
    if registry.traits(name).matches_one_device
    and not registry.traits(name).is_model_parallel
    and registry.traits(name).max_replicas is None
]


@pytest.mark.parametrize("strategy", DIVIDE)
def test_of_replicas_with_unequal_shares(strategy: str) -> None:
    """Three replicas have two, two and one of five rows, and then one, one and none."""
    features = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float64)
    assembly = assemble_custom(
        strategy,
        3,
        lambda: [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")],
        features,
        dtype="float64",
        global_batch_size=5,
        train_steps=2,
        replica_statistics=True,
    )
    batches = assembly.strategy.distribute(assembly.batches(0))
    results = assembly.loop_function(batches, 1, SummaryLevel.NORMS)
    found = ReplicaStatistics().scalars(results)
    order = next(iter(assembly.batches(0).dataset(0, 1))).features.numpy()
    parts = [order[:2], order[2:4], order[4:]]
    # The loss is the square of x.w, at w = (1, 1).
    losses = [np.mean(part.sum(axis=1) ** 2) for part in parts]
    assert [found[f"replica/loss_{i}"] for i in range(3)] == pytest.approx(losses)
    gradients = [(2 * part.sum(axis=1)[:, None] * part).mean(axis=0) for part in parts]
    square = np.mean([gradient @ gradient for gradient in gradients])
    assert results.sums["replica/square"][0] / 3 == pytest.approx(square)
    whole = (2 * order.sum(axis=1)[:, None] * order).mean(axis=0)
    assert float(results.details["gradient_norm"]) ** 2 == pytest.approx(whole @ whole)
    expected = cosine_of(np.array(gradients), [2, 2, 1])
    assert found["replica/gradient_cosine"] == pytest.approx(expected)
    results = assembly.loop_function(batches, 1, SummaryLevel.NORMS)
    found = ReplicaStatistics().scalars(results)
    losses_of = [name for name in found if name.startswith("replica/loss_")]
    assert losses_of == ["replica/loss_0", "replica/loss_1"]


def cosine_of(gradients: np.ndarray, rows: Sequence[int]) -> float:
    """Returns the mean product of pairs, as often as their examples make pairs."""
    pairs = list(itertools.combinations(range(len(rows)), 2))
    products = [gradients[i] @ gradients[j] for i, j in pairs]
    mean = np.average(products, weights=[rows[i] * rows[j] for i, j in pairs])
    return float(mean / np.mean((gradients**2).sum(axis=1)))


def reported(gradients: np.ndarray, rows: Sequence[int]) -> StepResults:
    """Returns the results of replicas that had certain gradients.

    Args:
      gradients: Gradient of each replica [replicas, weights].
      rows: Number of examples of each replica.
    """
    whole = np.average(gradients, axis=0, weights=rows)
    squares, rows_squared = (gradients**2).sum(axis=1), np.square(rows)
    sums = {
        "replica/square": [squares.sum()],
        "replica/count": [len(gradients)],
        "replica/inverse_rows": [np.sum(1 / np.array(rows))],
        "replica/squared_rows": [rows_squared.sum()],
        "replica/squared_parts": [rows_squared @ squares],
        "examples": [sum(rows)],
    }
    return of_a_step(sums, np.linalg.norm(whole))


def of_a_step(sums: Mapping[str, Any], gradient_norm: float) -> StepResults:
    """Returns the results of one step."""
    return StepResults(
        applied_steps=1,
        sums={name: np.array(values, np.float64) for name, values in sums.items()},
        step_seconds=np.zeros(1),
        input_seconds=np.zeros(1),
        details={"gradient_norm": gradient_norm},
        agreed=SyncedFlags(),
        attempted_steps=1,
    )


@pytest.mark.parametrize("rows", [(16, 16, 16, 16), (2, 2, 30, 30)])
def test_the_noise_scale_is_that_of_the_examples(rows: Sequence[int]) -> None:
    """The gradients have a known mean and noise."""
    random = np.random.default_rng(0)
    true, noise_of_an_example = np.full(10, 0.1), 0.5
    roots = np.sqrt(rows)[:, None]
    statistics = ReplicaStatistics()
    for number in range(4_000):
        noise = random.standard_normal((4, 10)) * noise_of_an_example
        found = statistics.scalars(reported(true + noise / roots, rows))
        if number == 3_000:
            beyond_its_type = {"gradient_norm": np.float32(np.inf)}
            results = reported(true + noise, rows)
            statistics.scalars(dataclasses.replace(results, details=beyond_its_type))
            # The run is killed, and continues from a checkpoint.
            state = statistics.state()
            check_state(state)
            statistics = ReplicaStatistics()
            statistics.restore(state)
    expected = 10 * noise_of_an_example**2 / (true @ true)
    # With ten other seeds the result was 0.977 to 1.005 of this.
    assert found["gradient_noise_scale"] == pytest.approx(expected, rel=0.1)


def test_the_cosine_is_the_mean_over_pairs() -> None:
    gradients = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    for rows in ((2, 2, 2), (1, 1, 2)):
        found = ReplicaStatistics().scalars(reported(gradients, rows))
        expected = cosine_of(gradients, rows)
        assert found["replica/gradient_cosine"] == pytest.approx(expected)
    same = ReplicaStatistics().scalars(reported(np.ones((2, 3)), (2, 2)))
    assert same["replica/gradient_cosine"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rows", "size"), [((4, 3), 7), ((4, 4), 7), ((3, 4), 5), ((1, 4), 2)]
)
def test_the_cosine_is_of_the_shards_that_arrive(
    rows: Sequence[int], size: int
) -> None:
    """Backup workers send shards of the next batch, which has other numbers of rows."""
    gradients = np.array([[1.0, 2.0], [1.0, -1.0]])
    sums: collections.Counter[str] = collections.Counter()
    for replica, (gradient, num_rows) in enumerate(zip(gradients, rows, strict=True)):
        outputs = ReplicaOutputs(
            gradients=[tf.constant(gradient * num_rows / size)],
            state={},
            sums={"loss": tf.constant(0.0, tf.float64), "examples": float(num_rows)},
        )
        batch = Batch(0, replica, size, num_rows, [], [], [])
        step = WithStatistics(functools.partial(lambda found, _: found, outputs), 2)
        sums.update({name: float(v) for name, v in step(batch).sums.items()})
    # The coordinator makes the sum a mean over the rows that have arrived.
    norm = np.linalg.norm(np.average(gradients, axis=0, weights=rows))
    results = of_a_step({name: [value] for name, value in sums.items()}, norm)
    found = ReplicaStatistics().scalars(results)
    expected = cosine_of(gradients, rows)
    assert found["replica/gradient_cosine"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "one_device"},
        {"strategy": "model_parallel"},
        {"strategy": "parameter_averaging"},
        {"strategy": "tower", "update": "async"},
        {"strategy": "tower", "average": "losses"},
    ],
    ids=str,
)
def test_it_is_refused_where_replicas_do_not_share_a_batch(
    settings: dict[str, str],
) -> None:
    with pytest.raises(UsageError, match="there must be several replicas"):
        Config().replace(replica_statistics=True, **settings)


def test_it_is_refused_beside_compressed_gradients() -> None:
    settings = {"strategy": "multi_worker_mirrored", "gradient_compression": "int8"}
    with pytest.raises(UsageError, match="--gradient_compression=int8"):
        Config().replace(replica_statistics=True, **settings)
