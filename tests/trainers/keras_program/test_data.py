"""Data of `fit` that are refused in a line."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from trainers.keras_program.data import data_of_fit, validates_on_nothing
from trainers.keras_program.fit_arguments import FitArguments

X, Y = np.ones((8, 2), np.float32), np.zeros(8, np.int64)


@pytest.mark.parametrize("x", [None, [], {}], ids=str)
def test_a_fit_without_data_is_refused(x: Any) -> None:
    with pytest.raises(UsageError, match="no training data: give x"):
        data_of_fit(FitArguments(x=x, y=Y), 0)


NO_DIMENSION, RAGGED = np.array(3.0), tf.ragged.constant([[1.0], [2.0, 3.0]] * 4)


class Batches(keras.utils.PyDataset):
    def __init__(self, *batches: Any):
        super().__init__()
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"x": NO_DIMENSION, "y": NO_DIMENSION},
            r"array of shape \(\) in its training",
        ),
        ({"x": X, "y": tf.constant(1.0)}, r"array of shape \(\) in its training"),
        ({"x": X, "y": Y, "sample_weight": NO_DIMENSION}, r"of shape \(\)"),
        ({"x": NO_DIMENSION, "validation_split": 0.5}, r"of shape \(\)"),
        ({"x": X, "y": Y, "validation_data": (X, NO_DIMENSION)}, r"its validation d"),
        ({"x": RAGGED, "y": Y}, "fit has training data in a RaggedTensor"),
        ({"x": X, "y": RAGGED}, "fit has training data in a RaggedTensor"),
        ({"x": 3.0, "y": 1.0}, "3.0 in its training data, where an array"),
        ({"x": X, "y": [0.0] * 8}, "0.0 in its training data.* as numpy.array"),
        ({"x": "train.csv"}, "'train.csv' in its training data"),
        ({"x": [X, None], "y": Y}, "None among the arrays of its training data"),
        ({"x": X, "class_weight": {0: 1.0}}, r"class_weight needs labels \(y\)"),
        ({"x": X, "y": Y, "class_weight": [1.0]}, r"\[1.0\] as its class_weight"),
        ({"x": Batches((1.0, 2.0))}, "1.0 in its training data, where an array"),
        ({"x": Batches((X, Y), (X[0], Y))}, "must have the same rank"),
        ({"x": tf.data.Dataset.from_tensors((X, Y, Y, Y))}, "in batches of 4 parts: g"),
        ({"x": (n for n in [None] * 2), "steps_per_epoch": 2}, "or empty ones"),
        ({"x": (n for n in "ab"), "steps_per_epoch": 2}, "'a' in its training data"),
        ({"x": tf.data.Dataset.from_tensors((RAGGED, Y))}, "data in a RaggedTensor"),
    ],
)
def test_odd_data_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        data_of_fit(FitArguments(**given), 0)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("given", "num_examples"),
    [
        ((X[:0], Y[:0]), 0),
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).take(0), 0),
        (tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).take(1), 2),
        (None, 0),
    ],
)
def test_validation_data_may_be_empty(given: Any, num_examples: int) -> None:
    """Keras trains without validation then."""
    arguments = FitArguments(x=X, y=Y, validation_data=given)
    data = data_of_fit(arguments, 0)
    assert data.evaluation.num_examples == num_examples
    assert validates_on_nothing(arguments, data) == (
        given is not None and not num_examples
    )


@pytest.mark.parametrize("given", [(), (X, Y, Y, Y)], ids=len)
def test_validation_data_of_other_parts_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=f"of {len(given)} parts: give"):
        data_of_fit(FitArguments(x=X, y=Y, validation_data=given), 0)
