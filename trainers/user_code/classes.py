"""Classes of labels and predictions, found by the loss that is minimized.

A cross-entropy loss over classes makes a classifier. For any other loss (several
outputs, labels of several kinds, a user's own function) no classes are counted, because
a confusion table could mean something else.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from models.objective import ClassPredictions, ClassPredictionsFunction


def classes_of(loss: Any) -> ClassPredictionsFunction | None:
    """Returns a function that finds the classes; None if the loss has no classes.

    Args:
      loss: Loss that is minimized: Keras's name of it, an object or a function, or a
        structure of these.
    """
    if isinstance(loss, (list, tuple, dict)):
        return None
    loss = keras.losses.get(loss)
    # Keras wraps a function into an object that has it as `fn`.
    find = _FINDERS.get(getattr(loss, "fn", loss))
    if find is None:
        return None
    return functools.partial(_checked, functools.partial(find, loss))


def _checked(
    find: Callable[[Any, Any], ClassPredictions | None], labels: Any, predictions: Any
) -> ClassPredictions | None:
    """Finds classes if labels and predictions are single tensors of known rank."""
    if tf.nest.is_nested(labels) or tf.nest.is_nested(predictions):
        return None
    if labels.shape.rank is None or predictions.shape.rank is None:
        return None
    return find(labels, predictions)


def _by_id(
    loss: Any, labels: tf.Tensor, predictions: tf.Tensor
) -> ClassPredictions | None:
    """Finds classes of labels that are ids, [n] or [n, 1].

    Predictions have one value per class, [n, classes].
    """
    if predictions.shape.rank != 2 or not _is_column(labels):
        return None
    # Examples of an ignored class must not be counted.
    if getattr(loss, "ignore_class", None) is not None:
        return None
    num_classes = predictions.shape[-1]
    if num_classes is None or num_classes < 2:
        return None
    ids = tf.cast(tf.reshape(labels, [-1]), tf.int64)
    return ClassPredictions(ids, tf.argmax(predictions, axis=-1), num_classes)


def _by_largest(
    loss: Any, labels: tf.Tensor, predictions: tf.Tensor
) -> ClassPredictions | None:
    """Finds classes of labels and predictions with one value per class, [n, classes].

    The largest value of a row is its class.
    """
    del loss
    num_classes = predictions.shape[-1] if predictions.shape.rank == 2 else None
    if num_classes is None or num_classes < 2 or labels.shape.rank != 2:
        return None
    ids, predicted = tf.argmax(labels, axis=-1), tf.argmax(predictions, axis=-1)
    return ClassPredictions(ids, predicted, num_classes)


def _of_two(
    loss: Any, labels: tf.Tensor, predictions: tf.Tensor
) -> ClassPredictions | None:
    """Finds classes of labels and predictions with one number each, [n] or [n, 1].

    A prediction is the probability of class 1, or its logit. Several numbers per
    example are several labels, without classes.
    """
    if not _is_column(labels) or not _is_column(predictions):
        return None
    # A logit of 0 is a probability of 0.5.
    half = 0.0 if getattr(loss, "from_logits", False) else 0.5
    ids = tf.cast(tf.reshape(labels, [-1]), tf.float32) > 0.5
    predicted = tf.reshape(predictions, [-1]) > tf.cast(half, predictions.dtype)
    return ClassPredictions(tf.cast(ids, tf.int64), tf.cast(predicted, tf.int64), 2)


def _is_column(values: tf.Tensor) -> bool:
    return values.shape.rank == 1 or (values.shape.rank == 2 and values.shape[1] == 1)


_FINDERS: Mapping[Any, Callable[..., ClassPredictions | None]] = {
    keras.losses.sparse_categorical_crossentropy: _by_id,
    keras.losses.categorical_crossentropy: _by_largest,
    keras.losses.categorical_focal_crossentropy: _by_largest,
    keras.losses.binary_crossentropy: _of_two,
    keras.losses.binary_focal_crossentropy: _of_two,
}
