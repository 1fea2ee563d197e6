"""A model in stages takes features and returns predictions as the whole model does."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.harness import small_config
from trainers.inputs.sources import ArraySource, Data
from trainers.pipeline_parallel.build import build_pipeline
from trainers.pipeline_parallel.layer_graph import LayerGraph
from trainers.pipeline_parallel.stages import StagedModel, make_stages

ROWS = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
NAMED = {"a": ROWS, "b": 2 * ROWS}


def two_inputs() -> tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]:
    a, b = keras.Input([3], name="a"), keras.Input([3], name="b")
    parts = [keras.layers.Dense(4, activation="tanh")(a), keras.layers.Dense(4)(b)]
    joined = keras.layers.Subtract()(parts)
    return a, b, keras.layers.Dense(2, name="out")(joined)


def in_another_order() -> keras.Model:
    a, b, outputs = two_inputs()
    return keras.Model([b, a], outputs)


def by_name() -> keras.Model:
    a, b, outputs = two_inputs()
    return keras.Model({"a": a, "b": b}, {"out": outputs})


def sequential() -> keras.Model:
    layers = [keras.layers.Dense(4), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input([3]), *layers])


# As a call of the model does of an entry that no input takes.
@pytest.mark.filterwarnings("ignore:The structure of .inputs.:UserWarning")
@pytest.mark.parametrize(
    ("build", "features"),
    [
        (in_another_order, NAMED),
        (in_another_order, [ROWS, 2 * ROWS]),
        (by_name, NAMED),
        (by_name, {**NAMED, "unused": ROWS}),
        (sequential, ROWS),
    ],
)
def test_stages_compute_what_the_model_computes(
    build: Callable[[], keras.Model], features: object
) -> None:
    model = build()
    features = tf.nest.map_structure(tf.constant, features)
    expected = model(features)
    graph = LayerGraph.of(model)
    stages = make_stages(graph, graph.cuts()[-1:], ["CPU:0", "CPU:0"])
    assert len(stages) == 2
    found = StagedModel(graph, stages)(features, training=False)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_layers_are_measured_with_examples_as_a_step_gets_them() -> None:
    """Stored images are larger than the crops that a model is trained on."""
    labels = np.zeros(4, np.int64)
    data = Data(
        train=ArraySource(np.zeros((4, 5), np.float32), labels),
        evaluation=ArraySource(ROWS, labels),
        input_shape=(3,),
        num_classes=2,
    )
    config = small_config(strategy="model_parallel", global_batch_size=4)
    pipeline = build_pipeline(sequential(), config, ["CPU:0", "CPU:0"], data)
    assert len(pipeline.stages) == 2
