"""Adam and AdamW in one pass over the weights."""

from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.optimizer_slices import adam_moments
from strategies.common.private_apis.variables import copies_of


class _DecayPowers:
    """Powers of Adam's two decay rates during one update of all variables.

    They are computed once for each device, and not once for each variable: five
    operations, and with parameter servers a message.
    """

    def __init__(self, adam: Any):
        self._adam = adam
        self._known: dict[Any, tuple[tf.Tensor, tf.Tensor]] = {}

    def for_variable(self, variable: tf.Variable) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns both powers on the variable's device, scalars of its type."""
        # A tensor of one branch of a graph cannot be read in another.
        graph = tf.compat.v1.get_default_graph()
        key = graph, variable.device, variable.dtype
        if key not in self._known:
            # Number of this update, from 1, for the bias correction.
            number = tf.cast(self._adam.iterations + 1, variable.dtype)
            # Keras's casts would round the rates to float32.
            rates = self._adam.beta_1, self._adam.beta_2
            first, second = (
                tf.pow(tf.constant(rate, variable.dtype), number) for rate in rates
            )
            self._known[key] = first, second
        return self._known[key]


class _OnePass:
    """Adam update in a single TensorFlow operation.

    Keras's Adam consists of a dozen operations, each of which reads and writes as much
    memory as the weights: a third of a step of a network with 21 million weights, and
    the larger part of a parameter server's work. `ResourceApplyAdam` has the same
    formula (tensorflow/core/kernels/training_ops.cc, `ApplyAdamNonCuda`; Kingma and Ba,
    Adam, 2014, the variant before section 2.1) and reads and writes each number once.
    """

    # Set while all variables are updated.
    _decay_powers: _DecayPowers | None = None

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates all variables; overrides the method of Keras."""
        # Valid for this call only: the update is counted at its end.
        self._decay_powers = _DecayPowers(self)
        try:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            self._decay_powers = None

    def update_step(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable; overrides the method of Keras.

        A sparse gradient moves every row of its table, as in Keras's Adam.
        """
        adam: Any = self
        first, second = (
            _beside(variable, moment) for moment in adam_moments(adam, variable)
        )
        dtype = variable.dtype
        # Keras's casts would round these numbers to float32.
        beta_1, beta_2, epsilon = (
            tf.constant(number, dtype)
            for number in (adam.beta_1, adam.beta_2, adam.epsilon)
        )
        if isinstance(gradient, tf.IndexedSlices):
            # On the variable's device, so that only its rows cross the network.
            with tf.device(variable.device):
                gradient = tf.convert_to_tensor(gradient)
        powers = self._decay_powers or _DecayPowers(adam)
        beta_1_power, beta_2_power = powers.for_variable(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=beta_1_power,
            beta2_power=beta_2_power,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, dtype),
        )


class Adam(_OnePass, keras.optimizers.Adam):
    """Adam (Kingma and Ba, A Method for Stochastic Optimization, 2014)."""


class AdamW(_OnePass, keras.optimizers.AdamW):
    """AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017)."""


def _beside(variable: tf.Variable, other: keras.Variable) -> tf.Variable:
    """Returns the copy of `other` on a variable's device, or its only copy."""
    copies = copies_of(other.value)
    return next((copy for copy in copies if copy.device == variable.device), copies[0])
