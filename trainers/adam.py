"""Adam and AdamW whose update is one pass over the weights."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from strategies.library_internals import adam_moments


class _OnePass:
    """Does what Keras's Adam does, in TensorFlow's own operation for it.

    Keras's has a dozen operations, each of which reads and writes as much memory as
    there are weights: a third of a step of a network with 21 million of them, and the
    larger part of what a parameter server does. `ResourceApplyAdam` has the same
    formula (tensorflow/core/kernels/training_ops.cc, `ApplyAdamNonCuda`; Kingma and Ba,
    Adam, 2014, the variant before section 2.1) and reads and writes each number once.
    """

    def update_step(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """As Keras defines it.

        Args:
          gradient: tensor, or IndexedSlices, which Keras's own update takes.
          variable: changed.
          learning_rate: scalar.
        """
        adam: Any = self
        if isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]
            return
        first, second = (
            _beside(variable, moment) for moment in adam_moments(adam, variable)
        )
        dtype = variable.dtype
        # Keras's casts would take these through single precision.
        beta_1, beta_2, epsilon = (
            tf.constant(number, dtype)
            for number in (adam.beta_1, adam.beta_2, adam.epsilon)
        )
        number = tf.cast(adam.iterations + 1, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=tf.pow(beta_1, number),
            beta2_power=tf.pow(beta_2, number),
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, dtype),
        )


class Adam(_OnePass, keras.optimizers.Adam):
    """Kingma and Ba, Adam: A Method for Stochastic Optimization, 2014."""


class AdamW(_OnePass, keras.optimizers.AdamW):
    """Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017."""


def _beside(variable: tf.Variable, other: keras.Variable) -> tf.Variable:
    """The copy of another variable on the device of one copy of the first."""
    copies = getattr(other.value, "values", (other.value,))
    return next((copy for copy in copies if copy.device == variable.device), copies[0])
