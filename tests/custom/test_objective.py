"""Losses and metrics of each example come to what `fit` and `evaluate` say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.settings import UsageError
from tests.custom import made
from trainers.custom.objective import objective_of


def means(
    model: keras.Model, features: Any, labels: Any, **given: Any
) -> dict[str, float]:
    predictions = model(features, training=False)
    few = tf.nest.map_structure(lambda v: tf.constant(v[:4]), (labels, predictions))
    objective = objective_of(model, given.get("loss"), given.get("metrics"), *few)
    values = objective.of_predictions(labels, predictions)
    return {name: float(tf.reduce_mean(value)) for name, value in values.items()}


def compiled(**settings: Any) -> keras.Model:
    model = made.stacked()
    model.compile(**settings)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "mse", "metrics": ["mae", "cosine_similarity"]},
        {"loss": keras.losses.LogCosh()},
        {"loss": lambda true, predicted: tf.abs(predicted - true)},
        {"loss": "kl_divergence", "metrics": ["accuracy"]},
        {
            "loss": keras.losses.CategoricalCrossentropy(
                from_logits=True, label_smoothing=0.1
            ),
            "metrics": [keras.metrics.CategoricalAccuracy(name="right")],
        },
        {"loss": "mse", "loss_weights": 0.5},
    ],
    ids=["mse", "LogCosh", "lambda", "kl", "smoothed", "weighed"],
)
def test_of_one_output(settings: dict[str, Any]) -> None:
    features, labels = made.arrays()
    one_hot = np.eye(3, dtype=np.float32)[labels]
    model = compiled(**settings)
    assert_as_evaluated(model, features, one_hot)


def test_of_ids_of_classes() -> None:
    assert_as_evaluated(made.subclassed(), *made.arrays())


def test_of_several_outputs_each_by_itself_and_weighed() -> None:
    found = assert_as_evaluated(made.two_in_two_out(), *made.several())
    assert found["loss"] == pytest.approx(
        0.3 * found["kind_loss"] + 2 * found["size_loss"], rel=1e-6
    )


def test_of_outputs_in_a_list() -> None:
    features, _ = made.arrays()
    inputs = keras.Input([5])
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("low", "high")]
    model = keras.Model(inputs, outputs)
    model.compile(loss=["mse", "mae"], metrics=[["mae"], ["mse"]])
    targets = [features[:, :1], features[:, 1:2]]
    assert_as_evaluated(model, features, targets)


def assert_as_evaluated(
    model: keras.Model, features: Any, labels: Any
) -> dict[str, float]:
    """Keras's own figures, to rounding of sums of 60 numbers in another order."""
    found = means(model, features, labels)
    # In one batch: of several, Keras takes the mean of means for each output's loss.
    expected = model.evaluate(
        features, labels, batch_size=60, verbose=0, return_dict=True
    )
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert len(expected) > 0
    return found


def test_names_of_flags_come_before_what_was_compiled() -> None:
    features, labels = made.arrays()
    one_hot = np.eye(3, dtype=np.float32)[labels]
    model = compiled(loss="mse", loss_weights=0.5, metrics=["mae"])
    found = means(model, features, one_hot, loss="mean_absolute_error", metrics=["mse"])
    predictions = model(features)
    assert found == pytest.approx(
        {
            "loss": np.abs(predictions - one_hot).mean(),
            "mse": np.square(predictions - one_hot).mean(),
        },
        rel=1e-5,
    )


def masked() -> keras.Model:
    ids = keras.Input([4], dtype="int64")
    words = keras.layers.Embedding(9, 2, mask_zero=True)(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(words))
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (made.not_compiled, "--loss is missing"),
        (made.mean_of_a_batch, "one number for a whole batch"),
        (made.counting_metric, "is not a mean over examples"),
        (lambda: compiled(loss={"other": "mse"}), "no loss is of an output"),
    ],
    ids=["no loss", "mean", "AUC", "no output"],
)
def test_what_has_no_value_of_each_example_is_refused(
    make: Callable[[], keras.Model], words: str
) -> None:
    features, labels = made.arrays()
    with pytest.raises(UsageError, match=words):
        means(make(), features, np.eye(3, dtype=np.float32)[labels])


def test_labels_of_another_output_are_refused() -> None:
    features, labels = made.several()
    labels["length"] = labels.pop("size")
    with pytest.raises(
        UsageError, match="no labels of output 'size'; it has labels of"
    ):
        means(made.two_in_two_out(), features, labels)


def test_an_output_of_which_a_part_does_not_count_is_refused() -> None:
    ids = np.array([[1, 2, 0, 0]])
    with pytest.raises(UsageError, match="has a mask"):
        means(masked(), ids, np.zeros([1, 4, 1], np.float32))
