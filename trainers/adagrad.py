"""Adagrad that changes only the rows a gradient has."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from strategies.library_internals import adagrad_accumulator


class Adagrad(keras.optimizers.Adagrad):
    """Keras's Adagrad (Duchi et al., Adaptive Subgradient Methods, 2011), sparse too.

    Keras's own takes the root of the whole accumulator and divides by it, whatever
    the gradient. A row without a gradient adds nothing to its accumulator and moves
    by nothing, so that leaving it alone is the same training. For Adam and momentum
    it would not be: they move rows on by what earlier steps have left.
    """

    def update_step(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """As Keras defines it, on rows where the gradient is sparse.

        Args:
          gradient: tensor, or IndexedSlices that have each row at most once.
          variable: changed.
          learning_rate: scalar.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        accumulator = adagrad_accumulator(self, variable)
        # Where the variable is, so that no row of the accumulator goes over the wire.
        with tf.device(variable.device):
            rate = tf.cast(learning_rate, variable.dtype)
            self.assign_add(accumulator, _with(gradient, tf.square(gradient.values)))
            squares = tf.gather(accumulator.value, gradient.indices)
            step = rate * gradient.values / tf.sqrt(squares + self.epsilon)
            self.assign_sub(variable, _with(gradient, step))


def _with(gradient: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
