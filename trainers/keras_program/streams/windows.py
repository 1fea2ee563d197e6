"""Windows of a stream: the batches of some steps as one tuple of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from models.objective import Weighted

# A window is sent to every worker, and a call of the inner loop has at most its steps.
_WINDOW_BYTES = 16 * 2**20
_MOST_WINDOW_STEPS = 512


class Window(NamedTuple):
    """Batches of some steps, each tensor as a string.

    Batches differ in shape, and the arguments of a traced function may not.

    Attributes:
      first_step: First step, int64 scalar.
      features: Serialized tensors of features, strings [steps].
      labels: Serialized tensors of labels, strings [steps].
    """

    first_step: tf.Tensor
    features: Any
    labels: Any

    @classmethod
    def of(cls, first_step: int, batches: Iterable[Any], num_steps: int) -> Window:
        """Returns a window of some batches, from `first_step`.

        All windows have `num_steps`, of which those without a batch are empty.
        """

        def filled(of_steps: Iterable[Any]) -> tf.Tensor:
            vector = tf.stack([*of_steps])
            return tf.pad(vector, [[0, num_steps - len(vector)]])

        parts = list(map(parts_of, batches))
        features, labels = tf.nest.map_structure(
            lambda *of_steps: filled(map(tf.io.serialize_tensor, of_steps)), *parts
        )
        return cls(tf.constant(first_step, tf.int64), features, labels)

    def parts(self, spec: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """Returns features and labels of one step by their specification."""
        index = step - self.first_step

        def parsed(spec: tf.TensorSpec, serialized: tf.Tensor) -> tf.Tensor:
            rows = tf.io.parse_tensor(serialized[index], spec.dtype)
            return tf.ensure_shape(rows, spec.shape)

        return tf.nest.map_structure(parsed, spec, (self.features, self.labels))


def most_window_steps(batch: Any, num_batches: int) -> int:
    """Returns the length of windows in steps, by a batch of the usual size.

    No window reads over the end of a pass.
    """
    size = sum(
        rows.dtype.size * rows.shape.num_elements() for rows in tensors_of(batch)
    )
    most = min(_WINDOW_BYTES // max(size, 1), _MOST_WINDOW_STEPS, num_batches)
    return max(most, 1)


def tensors_of(batch: Any) -> list[tf.Tensor]:
    """Returns all tensors of a batch."""
    return [part for part in tf.nest.flatten(batch) if part is not None]


def parts_of(batch: Any) -> tuple[Any, Any]:
    """Returns features, and labels with their sample weights if there are some."""
    features, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if labels is None:
        labels = ()
    if weights is None:
        return features, labels
    return features, Weighted(labels, weights)
