"""A model in stages takes features and returns predictions as the whole model does."""

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.harness import small_config
from trainers.inputs.sources import ArraySource, Data
from trainers.model.layer_state import LayerState
from trainers.model.train_step import StepSettings, with_totals
from trainers.pipeline_parallel.build import Pipeline, build_pipeline
from trainers.pipeline_parallel.layer_graph import LayerGraph
from trainers.pipeline_parallel.stages import make_stages
from trainers.pipeline_parallel.step import PipelineStep
from trainers.user_code.few_examples import few_examples
from trainers.user_code.model import CustomModel

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
    pipeline = Pipeline(graph=graph, stages=stages, num_microbatches=1)
    found = pipeline(features, training=False)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def data_of(rows: np.ndarray, labels: np.ndarray) -> Data:
    return Data(
        train=ArraySource(rows, labels),
        evaluation=ArraySource(ROWS, labels),
        input_shape=(3,),
        num_classes=2,
    )


def test_layers_are_measured_with_examples_as_a_step_gets_them() -> None:
    """Stored images are larger than the crops that a model is trained on."""
    data = data_of(np.zeros((4, 5), np.float32), np.zeros(4, np.int64))
    config = small_config(strategy="model_parallel", global_batch_size=4)
    pipeline = build_pipeline(sequential(), config, ["CPU:0", "CPU:0"], data)
    assert len(pipeline.stages) == 2


def test_the_mean_of_a_masked_loss_is_that_of_the_global_batch() -> None:
    """Not of each micro-batch, in which other numbers of labels count."""
    model, data = sequential(), data_of(ROWS, np.array([0, 1, 1, 1]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(loss=loss)
    objective = CustomModel(
        build=lambda data, settings: model,
        loss=None,
        metrics=None,
        few=lambda: few_examples(data.train),
        data=data,
        flag="--model",
    ).objective(model, label_smoothing=0.0)
    batch = few_examples(data.train, 4)
    with tf.GradientTape() as tape:
        expected = loss(batch.labels, model(batch.features))
    gradients = tape.gradient(expected, [v.value for v in model.trainable_variables])
    config = small_config(strategy="model_parallel", global_batch_size=4)
    pipeline = build_pipeline(model, config, ["CPU:0", "CPU:0"], data)
    assert pipeline.num_microbatches == 4
    state = LayerState(model)
    step = PipelineStep(model, pipeline, objective, state, StepSettings(seed=0))
    compute = with_totals(step, model, objective)
    outputs = tf.function(lambda batch: compute(batch))(batch)
    # Float32, in which micro-batches are summed in another order.
    np.testing.assert_allclose(outputs.sums["loss"], 4 * expected, rtol=1e-6)
    for found, gradient in zip(outputs.gradients, gradients, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-5, atol=1e-7)
