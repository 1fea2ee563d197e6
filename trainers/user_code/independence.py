"""Check that a loss or metric is a function of each example by itself.

Strategies divide a batch among replicas. If an example's loss depends on the others in
its batch, the sum over replicas is another loss than that of the whole batch.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError
from trainers.user_code import PerBatchError
from trainers.user_code.few_examples import rows_of, shapes_in_words

# Rounding of sums over one example's values, in single precision.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5

# Predictions of which each computation takes more than a few milliseconds.
_MANY = 1_000_000


class Judge(Protocol):
    """A loss or a metric."""

    @property
    def title(self) -> str:
        """Name in messages, such as `the loss 'huber'`."""

    def __call__(
        self, labels: Any, predictions: Any, *, global_size: Any, total: Any
    ) -> Any:
        """Returns values [n] of n examples; see `Loss`."""

    def weight_of_rows(self, labels: Any, predictions: Any, weights: Any) -> Any:
        """Returns the weight of each example in the mean, or None."""

    def reduced(self, labels: Any, predictions: Any) -> Any:
        """Returns the value of the batch in `fit`, a scalar."""


def check_independence(judges: Sequence[Judge], labels: Any, predictions: Any) -> None:
    """Computes a few examples together and one by one, and compares with Keras.

    The values of the predictions do not matter.

    Raises:
      PerBatchError: A value depends on the other examples.
      UsageError: The mean of the values is not the one of `fit`.
    """
    flat = tf.nest.flatten(predictions)
    is_large = sum(value.shape.num_elements() for value in flat) > _MANY
    count = flat[0].shape[0]
    alone = [[row] for row in range(count)]
    halves = [rows for rows in (range(count // 2), range(count // 2, count)) if rows]
    for judge in judges:
        _mean_of_parts(judge, labels, predictions, alone)
        # An argmax over the examples is found out by predictions in another order.
        for shift in range(1 if is_large else count):
            rolled = functools.partial(tf.roll, shift=shift, axis=0)
            others = tf.nest.map_structure(rolled, predictions)
            found = _mean_of_parts(judge, labels, others, halves)
            expected = judge.reduced(labels, others)
            if not agree(found, expected):
                raise UsageError(
                    f"{judge.title} is {float(expected):g} in fit and {float(found):g} "
                    "as the mean of its examples' values "
                    f"({shapes_of(labels, others)}): "
                    "return one value for each example, without their mean."
                )


def _mean_of_parts(
    judge: Judge, labels: Any, predictions: Any, parts: Sequence[Sequence[int]]
) -> tf.Tensor:
    """Returns the mean of the examples' values, if it is that of the parts' values.

    A part is the rows of some examples, and all parts together are all examples.
    """
    count = sum(map(len, parts))
    values = judge(labels, predictions, global_size=count, total=None)
    if values.shape != (count,):
        # Such as one for each output; a batch has the mean of them in `fit`.
        raise PerBatchError(
            f"{judge.title} gives {values.shape[0]} values for {count} examples: "
            "return a tensor whose first axis is that of the examples."
        )
    weights = judge.weight_of_rows(labels, predictions, None)
    total = None if weights is None else tf.reduce_sum(weights)
    of_parts = [
        judge(
            rows_of(labels, rows),
            rows_of(predictions, rows),
            global_size=count,
            total=total,
        )
        for rows in parts
    ]
    found = tf.reduce_mean(values)
    # Only sums over examples are ever used.
    if not agree(found, tf.reduce_mean(tf.concat(of_parts, 0))):
        raise PerBatchError(
            f"{judge.title} gives examples another value beside other examples, so "
            f"that replicas cannot share a batch ({shapes_of(labels, predictions)}): "
            "return a function of each example by itself, of labels and predictions "
            "of one shape."
        )
    return found


def agree(
    found: Any, expected: Any, rounding: Any = 0.0, relative: float = _RELATIVE
) -> bool:
    """Returns whether numbers are equal but for rounding in single precision.

    `rounding` is a further error of each number, in half precision.
    """
    return np.allclose(
        np.asarray(found, np.float64),
        np.asarray(expected, np.float64),
        rtol=relative,
        atol=_ABSOLUTE + rounding,
        equal_nan=True,
    )


def shapes_of(labels: Any, predictions: Any) -> str:
    """Returns shapes in words, such as `labels [n], predictions [n, 1]`."""
    found = map(shapes_in_words, (labels, predictions))
    return "labels {}, predictions {}".format(*found)
