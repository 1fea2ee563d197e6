"""Adagrad that changes only the rows that a sparse gradient has."""

from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.optimizer_slices import adagrad_accumulator


class Adagrad(keras.optimizers.Adagrad):
    """Adagrad (Duchi et al., Adaptive Subgradient Methods, 2011) with sparse updates.

    Keras's Adagrad takes the root of the whole accumulator and divides by it, even for
    a sparse gradient. A row without a gradient adds nothing to its accumulator and does
    not move, so skipping the row gives the same training. Skipping would be wrong for
    Adam and momentum, which keep moving rows by the effect of earlier steps.
    """

    def update_step(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable; of a sparse gradient only its rows, which differ."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        accumulator = adagrad_accumulator(self, variable)
        # On the variable's device, so that no row of the accumulator crosses the
        # network.
        with tf.device(variable.device):
            rate = tf.cast(learning_rate, variable.dtype)
            self.assign_add(accumulator, _with(gradient, tf.square(gradient.values)))
            squares = tf.gather(accumulator.value, gradient.indices)
            step = rate * gradient.values / tf.sqrt(squares + self.epsilon)
            self.assign_sub(variable, _with(gradient, step))


def _with(gradient: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
