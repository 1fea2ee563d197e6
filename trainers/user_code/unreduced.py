"""A loss of Keras without its reduction over a batch."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import mask_of
from trainers.user_code import PerBatchError
from trainers.user_code.few_examples import shapes_in_words


class Unreduced(keras.losses.Loss):
    """Calls a loss as Keras does, and returns its values as they are.

    `Loss.__call__` brings labels and predictions to one dtype, and the `call` of a
    wrapped function to one rank; both run here, and only the reduction does not.
    """

    def __init__(self, loss: keras.losses.Loss):
        """Refuses losses whose reduction has no per-example form.

        Raises:
          PerBatchError: The loss reduces its values itself.
          UsageError: `fit` would minimize another number than it reports.
        """
        super().__init__(name=loss.name, reduction="none", dtype=loss.dtype)
        if loss.reduction in (None, "none"):
            raise UsageError(
                f"the loss {loss.name!r} has reduction={loss.reduction!r}, of which "
                "fit minimizes the sum over a batch and reports the mean: give it "
                "reduction='sum_over_batch_size' or 'sum'."
            )
        if type(loss).__call__ is not keras.losses.Loss.__call__:
            raise PerBatchError(
                f"the loss {loss.name!r} has a __call__ of its own, with which its "
                "values cannot be had without their reduction: write its call(y_true, "
                "y_pred) instead."
            )
        self._loss = loss

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """See `keras.losses.Loss`."""
        return in_columns(self._loss.call, y_true, y_pred)


class RowWeights(keras.losses.Loss):
    """Weight of each example in the mean of a loss, in place of the loss.

    A mean counts the values that a mask leaves (`Loss.reduction` sum_over_batch_size)
    or the sample weights (mean_with_sample_weight): keras/src/losses/loss.py,
    `apply_mask` and `reduce_values`.

    Attributes:
      is_needed: False if every example had the same weight in the last call.
    """

    def __init__(self, loss: keras.losses.Loss):
        super().__init__(name=loss.name, reduction="none", dtype=loss.dtype)
        self.is_needed = False
        self._loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the weights [n], or zeros where they are not needed.

        Raises:
          UsageError: Sample weights do not fit the values of examples.
        """
        values = self._values(y_true, y_pred)
        if sample_weight is not None:
            _check_axes(sample_weight, values, self._loss.name)
        factors = [mask_of(y_pred), mask_of(values)]
        if self._loss.reduction == "mean_with_sample_weight":
            factors.append(sample_weight)
        elif self._loss.reduction == "sum":
            factors = []
        factors = [tf.cast(one, self.dtype) for one in factors if one is not None]
        self.is_needed = bool(factors)
        if not factors:
            return tf.zeros([num_rows(y_pred)], self.dtype)
        rank = max(factor.shape.rank for factor in factors)
        product = tf.ones([], self.dtype)
        for factor in factors:
            ones = [1] * (rank - factor.shape.rank)
            product *= tf.reshape(factor, [*tf.unstack(tf.shape(factor)), *ones])
        return tf.reduce_sum(product, axis=list(range(1, rank)))

    def _values(self, y_true: Any, y_pred: Any) -> Any:
        converted = (
            keras.tree.map_structure(lambda value: tf.cast(value, self.dtype), given)
            for given in (y_true, y_pred)
        )
        return self._loss.call(*converted)


def _check_axes(weights: Any, values: Any, name: str) -> None:
    """Refuses weights that Keras does not multiply by the values of their examples.

    Keras aligns the last axes (keras/src/losses/loss.py, `reduce_weighted_values`), so
    that [n] and [n, t] fit where a batch or a shard has t examples. A last axis of one
    is the exception.
    """
    given, needed = weights.shape, values.shape
    if None in (given.rank, needed.rank) or given.rank == needed.rank:
        return
    if not needed.rank:
        # Other losses without a value of each example are refused before.
        raise UsageError(
            "weights of examples (sample_weight, class_weight) do not fit the loss "
            f"{name!r} of outputs [n], whose mean over a batch Keras would multiply by "
            "each of them: give the model outputs of shape [n, 1]."
        )
    longer = max(given, needed, key=len)
    if abs(given.rank - needed.rank) == 1 and longer[-1] == 1:
        return
    fitting = ", ".join(["n", *"1" * (needed.rank - 1)])
    raise UsageError(
        f"weights of examples (sample_weight, class_weight) have the shape "
        f"{shapes_in_words(weights)} and the values of the loss {name!r} "
        f"{shapes_in_words(values)}, whose last axes Keras would multiply: give "
        f"weights with as many axes as the values, such as [{fitting}]."
    )


def of_rows(
    reduce: Callable[..., tf.Tensor], values: Any, predictions: Any, title: str
) -> tf.Tensor:
    """Reduces values to one for each example, such as the mean of one for each word.

    Args:
      reduce: Takes a tensor and the axes to reduce.
      values: [n, ...]; or one axis of as many for each example, one after another.
      predictions: Predictions for the n examples.
      title: The loss or metric, for messages.

    Returns:
      A tensor [n].

    Raises:
      PerBatchError: The values are one number for the whole batch.
    """
    values = tf.convert_to_tensor(values)
    if not values.shape.rank:
        raise PerBatchError(
            f"{title} gives one number for a whole batch, and each example's is "
            "needed: return a tensor with a value of each, without its mean."
        )
    first = tf.nest.flatten(predictions)[0]
    if values.shape.rank == 1 and first.shape.rank > 2:
        # Losses of sequences are often written for all words of all examples.
        values = tf.reshape(values, [num_rows(predictions), -1])
    return reduce(values, axis=list(range(1, values.shape.rank)))


def num_rows(predictions: Any) -> tf.Tensor:
    """Returns the number of examples, an integer scalar."""
    return tf.shape(tf.nest.flatten(predictions)[0])[0]


def in_columns(function: Callable[[Any, Any], Any], *vectors: Any) -> Any:
    """Calls a function of labels and predictions, with columns if they are vectors.

    A mean over the last axis of vectors [n] is one over the examples; of columns
    [n, 1] it is one value for each.
    """
    values = tf.convert_to_tensor(function(*vectors))
    if values.shape.rank == 0 and all(_is_vector(vector) for vector in vectors):
        return function(*(vector[:, tf.newaxis] for vector in vectors))
    return values


def _is_vector(values: Any) -> bool:
    return not tf.nest.is_nested(values) and values.shape.rank == 1
