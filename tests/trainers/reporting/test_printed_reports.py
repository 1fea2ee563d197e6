"""Tests of the lines that a run prints at its start."""

import pathlib

import keras
import pytest

from models.base import Examples
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from tests.conformance.harness import small_config
from trainers.loop.builder import assemble, create_strategy
from trainers.reporting.printed_reports import print_startup_report
from trainers.run_dir.run_dir import RunDir

NORMALIZED = "tests.fault_injection.normalized_model:model"
REPLICAS = {"num_replicas": 3}
OF_ALL = "one_device; BatchNormalization(synchronized=True) normalizes all"


@pytest.mark.parametrize(
    ("strategy", "settings", "of_layer", "named"),
    [
        ("one_device", {}, {}, None),
        ("mirrored", REPLICAS, {}, f"8 of the 24 rows{OF_ALL}\n"),
        ("mirrored", REPLICAS, {"synchronized": True}, None),
        ("mirrored", REPLICAS, {"trainable": False}, None),
        ("tower", REPLICAS, {"synchronized": True}, f"8 of the 24 rows{OF_ALL} under "),
        ("tower", {**REPLICAS, "update": "async"}, {}, None),
        (
            *("mirrored", {**REPLICAS, "gradient_accumulation_steps": 2}),
            *({}, "4 of the 24 rowsone_device\n"),
        ),
    ],
)
def test_layers_that_normalize_a_part_of_a_global_batch_are_named(
    strategy: str,
    settings: dict[str, object],
    of_layer: dict[str, bool],
    named: str | None,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = small_config(
        strategy=strategy, model=NORMALIZED, global_batch_size=24, **settings
    )
    parts = assemble(config, create_strategy(config, Cluster()))
    (layer,) = [
        layer
        for layer in parts.model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    for name, value in of_layer.items():
        setattr(layer, name, value)
    print_startup_report(parts, RunDir(tmp_path), 0, Console())
    said = capsys.readouterr().err
    between = " of a global batch at a time: another training than that of "
    if named is None:
        assert layer.name not in said
    else:
        assert named in said.replace(between, ""), said
        assert f"layer {layer.name!r} normalizes " in said


class Graph(keras.Model):
    """Predicts for nodes of a graph by all of its nodes."""

    def __init__(self, num_classes: int, has_head: bool):
        super().__init__()
        self.nodes = keras.random.normal([20, 4])
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.5)
        self.dense = keras.layers.Dense(num_classes)
        self.head = keras.layers.BatchNormalization() if has_head else None

    def call(self, inputs, training=None):
        hidden = self.dropout(self.nodes, training=training)
        every = self.dense(self.norm(hidden, training=training))
        indices = keras.ops.cast(keras.ops.sum(inputs, axis=(1, 2, 3)), "int32") % 20
        outputs = keras.ops.take(every, indices, axis=0)
        return self.head(outputs, training=training) if self.head else outputs


def graph(data: Examples, has_head: bool = False) -> keras.Model:
    model = Graph(data.num_classes, has_head)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def graph_with_head(data: Examples) -> keras.Model:
    return graph(data, has_head=True)


@pytest.mark.parametrize(
    ("model", "is_named"), [("graph", False), ("graph_with_head", True)]
)
def test_layers_that_normalize_what_batches_share_are_not_named(
    model: str,
    is_named: bool,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = small_config(strategy="mirrored", model=f"{__name__}:{model}", **REPLICAS)
    parts = assemble(config, create_strategy(config, Cluster()))
    print_startup_report(parts, RunDir(tmp_path), 0, Console())
    assert ("normalize" in capsys.readouterr().err) == is_named


class _Sum(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(1e-3 * keras.ops.sum(inputs**2))
        return inputs


def summed(data: Examples) -> keras.Model:
    """Adds a loss that is a sum over the examples of a batch."""
    last = keras.layers.Dense(data.num_classes)
    model = keras.Sequential(
        [keras.Input(data.input_shape), keras.layers.Flatten(), last, _Sum()]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def pairs(data: Examples) -> keras.Model:
    """Predicts a number for each pair of examples of a batch."""
    inputs = keras.Input(data.input_shape)
    hidden = keras.layers.Dense(3)(keras.layers.Flatten()(inputs))
    outputs = keras.ops.matmul(hidden, keras.ops.transpose(hidden))
    model = keras.Model(inputs, outputs)
    model.compile(loss=lambda _, outputs: keras.ops.mean(outputs**2, axis=1))
    return model


def test_outputs_that_replicas_compute_otherwise_are_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(strategy="mirrored", model=f"{__name__}:pairs", **REPLICAS)
    parts = assemble(config, create_strategy(config, Cluster()))
    print_startup_report(parts, RunDir(tmp_path), 0, Console())
    assert "[16, 16] for a batch and [8, 8] for its half" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("strategy", "settings", "is_named"),
    [
        ("one_device", {}, False),
        ("mirrored", REPLICAS, True),
        # Each replica computes whole global batches.
        ("tower", {**REPLICAS, "update": "async"}, False),
    ],
)
def test_a_loss_that_replicas_add_otherwise_is_named(
    strategy: str,
    settings: dict[str, object],
    is_named: bool,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = small_config(strategy=strategy, model=f"{__name__}:summed", **settings)
    parts = assemble(config, create_strategy(config, Cluster()))
    print_startup_report(parts, RunDir(tmp_path), 0, Console())
    assert ("add_loss" in capsys.readouterr().err) == is_named
