"""Checks that --average=losses equals --average=gradients, on the right devices."""

import re

import keras
import pytest

from strategies import registry
from tests.conformance.harness import (
    LAYOUTS,
    UPDATES,
    Subject,
    small_config,
    subjects,
)
from tests.conformance.test_same_training import (
    TOLERANCES,
    assert_same_training,
    of_one_device,
)
from tests.conformance.test_sparse_gradients import clicks_config
from tests.markers import chosen, further

AVERAGING_LOSSES = [
    (name, replicas)
    for name, replicas in subjects()
    # One replica has nothing to average; of three replicas some have no rows.
    if replicas in (1, 3) and "losses" in registry.traits(name).averages
]


@pytest.mark.parametrize("update", chosen(UPDATES, ["adamw"]))
@pytest.mark.parametrize(
    ("strategy", "replicas"), chosen(AVERAGING_LOSSES, [("tower", 3)])
)
def test_one_gradient_of_the_mean_loss_is_the_mean_of_gradients(
    strategy: str, replicas: int, update: str
) -> None:
    """Compares with one device, as other tests do with averaged gradients."""
    shared = {"model": "mlp", "dtype": "float64", **UPDATES[update]}
    settings = {"strategy": strategy, "num_replicas": replicas, **shared}
    tolerance = TOLERANCES["float64", update]
    losses = Subject.of(small_config(average="losses", **settings))
    for name, layout in LAYOUTS.items():
        outcome = losses.run(layout)
        expected = of_one_device("mlp", update, "float64", name)
        assert_same_training(outcome, expected, tolerance)
        assert outcome.gradient_norm == pytest.approx(
            expected.gradient_norm, rel=tolerance
        )


@pytest.mark.parametrize("sparse_gradients", [True, further(False)])
@pytest.mark.parametrize("strategy", sorted({name for name, _ in AVERAGING_LOSSES}))
def test_rows_of_embeddings_as_well(strategy: str, sparse_gradients: bool) -> None:
    config = clicks_config(
        "adagrad",
        strategy=strategy,
        num_replicas=2,
        average="losses",
        sparse_gradients=sparse_gradients,
    )
    outcome = Subject.of(config).run(LAYOUTS["uneven"])
    expected = Subject.of(clicks_config("adagrad")).run(LAYOUTS["uneven"])
    assert_same_training(outcome, expected, TOLERANCES["float64", "sgd"])


def ignoring_a_class() -> keras.Model:
    """Returns a model whose loss divides by the examples of the other classes."""
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3)
    model.compile(loss=loss)
    return model


def test_towers_count_the_labels_of_a_masked_loss_first() -> None:
    settings = {
        "model": f"{__name__}:ignoring_a_class",
        "dtype": "float64",
        "optimizer": "sgd",
    }
    losses = small_config(
        strategy="tower", num_replicas=3, average="losses", **settings
    )
    outcome = Subject.of(losses).run(LAYOUTS["uneven"])
    expected = Subject.of(small_config(**settings)).run(LAYOUTS["uneven"])
    assert_same_training(outcome, expected, TOLERANCES["float64", "sgd"])


def test_every_tower_differentiates_its_own_part() -> None:
    """A single tape would compute all gradients on the device that asks for them."""
    config = small_config(
        strategy="tower", num_replicas=3, model="mlp", average="losses"
    )
    assembly = Subject.of(config).assembly
    batches = assembly.strategy.distribute(assembly.batches(0))
    graph = assembly.loop_function.trace(batches).as_graph_def()
    products = [
        node
        for function in graph.library.function
        for node in function.node_def
        if node.op == "MatMul" and "/gradients/" in node.name
    ]
    devices: dict[str, set[str]] = {}
    for node in products:
        (tower,) = re.findall(r"tower_\d", node.name)
        devices.setdefault(tower, set()).add(node.device)
    assert devices == {f"tower_{i}": {f"/device:CPU:{i}"} for i in range(3)}
