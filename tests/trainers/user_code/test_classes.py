"""Numbers of classes of users' models, and models that leave them open."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.objective import ClassPredictions
from trainers.user_code.classes import classes_of

IDS = np.array([0, 2, 1, 2])
OF_THREE = np.array([[9, 1, 1], [1, 2, 9], [1, 9, 2], [8, 1, 1]], np.float32)
TAKEN_FOR = [0, 2, 1, 0]
LOGITS_OF_ONE = np.array([[-1.0], [0.2], [3.0], [-2.0]], np.float32)
ZERO_OR_ONE = np.array([0.0, 0.0, 1.0, 1.0], np.float32)
SPARSE = keras.losses.SparseCategoricalCrossentropy


def found(loss: Any, labels: Any, predictions: Any) -> ClassPredictions | None:
    classes = classes_of(loss)
    if classes is None:
        return None
    return classes(*tf.nest.map_structure(tf.constant, (labels, predictions)))


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("sparse_categorical_crossentropy", IDS),
        ("SparseCategoricalCrossentropy", IDS[:, np.newaxis]),
        (SPARSE(from_logits=True), IDS.astype(np.float32)),
        (keras.losses.sparse_categorical_crossentropy, IDS),
        ("categorical_crossentropy", np.eye(3)[IDS]),
        (keras.losses.CategoricalFocalCrossentropy(), np.eye(3)[IDS]),
    ],
    ids=["name", "class", "object", "function", "shares", "focal"],
)
def test_cross_entropy_over_classes_has_them(loss: Any, labels: np.ndarray) -> None:
    classes = found(loss, labels, OF_THREE)
    assert classes is not None
    assert classes.labels.numpy().tolist() == IDS.tolist()
    assert classes.predictions.numpy().tolist() == TAKEN_FOR
    assert classes.num_classes == 3


@pytest.mark.parametrize(
    ("loss", "taken_for"),
    [
        (keras.losses.BinaryCrossentropy(from_logits=True), [0, 1, 1, 0]),
        ("binary_crossentropy", [0, 0, 1, 0]),
    ],
    ids=["logits", "probabilities"],
)
@pytest.mark.parametrize("rank", [1, 2])
def test_one_number_says_which_of_two(
    loss: Any, taken_for: list[int], rank: int
) -> None:
    labels = ZERO_OR_ONE if rank == 1 else ZERO_OR_ONE[:, np.newaxis]
    classes = found(loss, labels, LOGITS_OF_ONE)
    assert classes is not None
    assert classes.labels.numpy().tolist() == [0, 0, 1, 1]
    assert classes.predictions.numpy().tolist() == taken_for
    assert classes.num_classes == 2


def own_loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    return keras.losses.sparse_categorical_crossentropy(labels, predictions)


@pytest.mark.parametrize(
    ("loss", "labels", "predictions"),
    [
        ("mean_squared_error", IDS.astype(np.float32), LOGITS_OF_ONE),
        ("mean_squared_error", np.eye(3)[IDS], OF_THREE),
        (own_loss, IDS, OF_THREE),
        ("binary_crossentropy", np.eye(3)[IDS], OF_THREE),
        ("sparse_categorical_crossentropy", np.ones((4, 5)), np.ones((4, 5, 3))),
        (SPARSE(ignore_class=0), IDS, OF_THREE),
        ({"kind": SPARSE()}, {"kind": IDS}, {"kind": OF_THREE}),
        (SPARSE(), IDS, (OF_THREE, OF_THREE)),
    ],
    ids=[
        *("regression", "regression_of_several", "own_loss", "several_labels"),
        *("sequences", "ignored_class", "losses_by_name", "several_outputs"),
    ],
)
def test_of_anything_else_nothing_is_said(
    loss: Any, labels: Any, predictions: Any
) -> None:
    assert found(loss, labels, predictions) is None
