"""Optimizers and learning rate schedules, from Keras.

Adam and AdamW update in one pass over the weights. Adagrad changes only the rows that a
sparse gradient has.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.models import flat_layers
from strategies.common.private_apis.optimizers import (
    adagrad_accumulator,
    adam_moments,
    build_optimizer_anew,
    count_atomically,
    schedule_of,
    stop_reducing_gradients,
)
from trainers.config.optimizer import OptimizerConfig
from trainers.model.several_optimizers import parts_of

# Those of Keras that `updates_each_element` accepts.
ELEMENTWISE = (
    *(keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW),
    *(keras.optimizers.RMSprop, keras.optimizers.Adagrad, keras.optimizers.Adadelta),
    *(keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.Ftrl),
    keras.optimizers.Lion,
)


def build_optimizer(
    config: OptimizerConfig, learning_rate: LearningRate, model: keras.Model
) -> keras.optimizers.Optimizer:
    """Returns an optimizer with its variables built, which applies gradients as given.

    Args:
      config: Update rule and its settings.
      learning_rate: Learning rate by step.
      model: Model whose trainable variables the optimizer updates.
    """
    settings: dict[str, Any] = {
        "learning_rate": learning_rate,
        "weight_decay": config.weight_decay or None,
    }
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(**settings),
        "momentum": lambda: keras.optimizers.SGD(momentum=config.momentum, **settings),
        "adagrad": lambda: Adagrad(**settings),
        "adam": lambda: Adam(**settings),
        "adamw": lambda: AdamW(**{**settings, "weight_decay": config.weight_decay}),
    }
    optimizer = optimizers[config.optimizer]()
    optimizer.build(model.trainable_variables)
    # The strategy has already summed the gradients; Keras would sum them again.
    stop_reducing_gradients(optimizer)
    count_atomically(optimizer)
    return optimizer


def adopt_optimizer(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Makes an optimizer of the user's train under a strategy, in whose scope this is.

    Args:
      optimizer: Optimizer, perhaps with the state of an earlier training.
      model: Model whose trainable variables it updates.
    """
    for part, variables in parts_of(optimizer, model.trainable_variables):
        build_optimizer_anew(part, variables)
        # The strategy has already summed the gradients; Keras would sum them again.
        stop_reducing_gradients(part)
        count_atomically(part)


def has_conditional_update(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer changes weights in some of its updates only.

    Keras accumulates gradients, and overwrites weights with their moving average, in a
    branch (keras/src/optimizers/base_optimizer.py, `_backend_apply_gradients`).
    """
    return any(
        part.gradient_accumulation_steps
        or (part.use_ema and part.ema_overwrite_frequency)
        for part, _ in parts_of(optimizer, [])
    )


def updates_each_element(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer computes each element of a weight by itself.

    Others need norms, means or products of whole weights. A subclass may do anything.
    """
    own = {Adam: keras.optimizers.Adam, AdamW: keras.optimizers.AdamW}
    own[Adagrad] = keras.optimizers.Adagrad
    kind = type(optimizer)
    return own.get(kind, kind) in ELEMENTWISE


def rate_of(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """Returns the learning rate of an optimizer for the update after a step.

    Args:
      optimizer: Optimizer whose rate is a number that may be changed, or a schedule.
      step: Number of updates that the optimizer has applied.
    """
    # The first of several is reported.
    optimizer, _ = parts_of(optimizer, [])[0]
    schedule = schedule_of(optimizer)
    rate = optimizer.learning_rate if schedule is None else schedule(step)
    return float(keras.ops.convert_to_numpy(rate))


def update_where_variables_are(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer compute each variable's update on the variable's device.

    Otherwise one device computes all updates, and the values travel there and back.

    Args:
      optimizer: Optimizer to change.
    """
    update_step = optimizer.update_step

    def on_its_device(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        with tf.device(variable.device):
            update_step(gradient, variable, learning_rate)

    optimizer.update_step = on_its_device


class LearningRateScale:
    """Factor of the learning rate: 1 unless the run was rolled back."""

    def __init__(self, may_change: bool):
        """Creates the variable of the factor, in a strategy's scope.

        Args:
          may_change: True if the factor can change after steps are traced. If not, the
            steps contain the number as a constant and read no variable.
        """
        self.variable = tf.Variable(
            1.0,
            trainable=False,
            name="learning_rate_factor",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._may_change = may_change
        self._held = 1.0

    def assign(self, factor: float) -> None:
        """Sets the factor in this process only.

        Args:
          factor: New factor.
        """
        self.variable.assign(factor)
        self.hold()

    def hold(self) -> None:
        """Reads the number from the variable, before steps are traced."""
        self._held = float(self.variable.numpy())

    def times(self, rate: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate multiplied by the factor.

        Args:
          rate: Scalar learning rate.
        """
        if self._may_change:
            return rate * tf.convert_to_tensor(self.variable)
        # No multiplication in the graph of a run without rollback.
        return rate if self._held == 1.0 else rate * self._held


# Named in the sums of a step, so that it is reported as a mean over its examples.
LOSS_SCALE = "loss_scale"


class LossScale:
    """Factor of the loss that keeps float16 gradients from vanishing.

    Numbers below 6e-8 are zero in float16, and many gradients are (Micikevicius et al.,
    Mixed Precision Training, 2018). The loss is multiplied by a power of two before it
    is differentiated, and each replica's gradients are divided by it, which rounds
    nothing: their sum is that of scaled gradients, divided afterwards. If a number in
    the sum is not finite, a step is computed once more, on the same batch, at half the
    scale: it was not applied, and no example is lost. After GROWTH_STEPS finite ones
    the scale is doubled. Start, factor and steps are Keras's defaults for
    `keras.optimizers.LossScaleOptimizer`, which continues with the next batch instead.
    """

    GROWTH_STEPS = 2000
    START_EXPONENT = 15
    # Below the least, float16 has no room for gradients of one; that is divergence.
    EXPONENTS = range(-14, 41)

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        """Adds two variables to an optimizer, so that checkpoints have them.

        They are whole numbers, of which no strategy takes a mean over replicas.
        """
        self._exponent, self._finite_steps = (
            optimizer.add_variable(
                shape=(),
                initializer=keras.initializers.Constant(value),
                dtype="int64",
                aggregation="only_first_replica",
                name=name,
            )
            for name, value in (
                ("loss_scale_exponent", self.START_EXPONENT),
                ("loss_scale_finite_steps", 0),
            )
        )

    def read(self) -> tf.Tensor:
        """Returns the present scale, a float32 scalar."""
        exponent = tf.convert_to_tensor(self._exponent.value)
        # From a table: a power may be rounded.
        powers = tf.constant([2.0**exponent for exponent in self.EXPONENTS])
        return tf.gather(powers, exponent - self.EXPONENTS.start)

    def adapt(
        self, used: tf.Tensor, is_finite: tf.Tensor, overflowed: tf.Tensor
    ) -> tf.Tensor:
        """Takes up how a step has ended, once for all replicas.

        Args:
          used: The scale of the step, a float64 scalar. Others may have changed it
            since, if updates do not wait for each other.
          is_finite: Bool scalar, True if the step was applied.
          overflowed: Bool scalar, True if it was not, though its loss was finite.

        Returns:
          Whether to compute the step once more, a bool scalar; it is known when the
          scale has been changed.
        """
        used = tf.cast(tf.round(tf.math.log(used) / math.log(2)), tf.int64)
        present = tf.convert_to_tensor(self._exponent.value)
        count = tf.convert_to_tensor(self._finite_steps.value)
        again = overflowed & (used > self.EXPONENTS.start)
        lowers = again & tf.equal(present, used)
        grows = is_finite & (count + 1 >= self.GROWTH_STEPS)
        higher = tf.minimum(present + 1, self.EXPONENTS.stop - 1)
        exponent = tf.where(lowers, used - 1, tf.where(grows, higher, present))
        count = tf.where(is_finite & ~grows, count + 1, 0)
        changes = [
            self._exponent.value.assign(exponent, read_value=False),
            self._finite_steps.value.assign(count, read_value=False),
        ]
        with tf.control_dependencies([c for c in changes if c is not None]):
            return tf.identity(again)


def needs_loss_scale(model: keras.Model) -> bool:
    """Returns whether gradients pass through float16 on their way to larger weights.

    Gradients of float16 weights cannot be divided by a scale without losing the
    precision that it has saved; Keras does not scale their loss either.
    """
    weights = {variable.dtype for variable in model.trainable_variables}
    layers = flat_layers(model)
    return "float16" not in weights and any(
        layer.compute_dtype == "float16" for layer in layers
    )


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate by step: a linear warm-up, then the configured schedule.

    With peak rate r (`OptimizerConfig.peak_learning_rate`), w warm-up steps, n steps in
    total and x = (step - w) / (n - w): warm-up is r (step + 1) / w; cosine is r (1 +
    cos(pi x)) / 2 (Loshchilov and Hutter, SGDR, 2016, without restarts); step is r,
    then r/10 from x = 0.5 and r/100 from x = 0.75.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        train_steps: int,
        global_batch_size: int,
        factor: LearningRateScale | None = None,
    ):
        self._config = config
        self._rate_factor = factor
        self._peak = config.peak_learning_rate(global_batch_size)
        self._train_steps = train_steps

    def __call__(self, step: Any) -> tf.Tensor:
        warmup = self._config.warmup_steps
        step = tf.cast(step, tf.float32)
        decay_steps = max(self._train_steps - warmup, 1)
        progress = tf.clip_by_value((step - warmup) / decay_steps, 0.0, 1.0)
        factor = _FACTORS[self._config.learning_rate_schedule](progress)
        if warmup:
            factor = tf.where(step < warmup, (step + 1) / warmup, factor)
        rate = self._peak * factor
        return rate if self._rate_factor is None else self._rate_factor.times(rate)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("The run's config.json describes the schedule.")


def _cosine(progress: tf.Tensor) -> tf.Tensor:
    return (1 + tf.cos(tf.constant(3.141592653589793) * progress)) / 2


def _step(progress: tf.Tensor) -> tf.Tensor:
    return tf.where(progress < 0.5, 1.0, tf.where(progress < 0.75, 0.1, 0.01))


_FACTORS = {"constant": tf.ones_like, "cosine": _cosine, "step": _step}


class _OnePass:
    """Adam update in a single TensorFlow operation.

    Keras's Adam consists of a dozen operations, each of which reads and writes as much
    memory as the weights: a third of a step of a network with 21 million weights, and
    the larger part of a parameter server's work. `ResourceApplyAdam` has the same
    formula (tensorflow/core/kernels/training_ops.cc, `ApplyAdamNonCuda`; Kingma and Ba,
    Adam, 2014, the variant before section 2.1) and reads and writes each number once.
    """

    def update_step(
        self, gradient: Any, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable; overrides the method of Keras.

        Args:
          gradient: Tensor, or IndexedSlices, which Keras's own update handles.
          variable: Variable to update.
          learning_rate: Scalar.
        """
        adam: Any = self
        if isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]
            return
        first, second = (
            _beside(variable, moment) for moment in adam_moments(adam, variable)
        )
        dtype = variable.dtype
        # Keras's casts would round these numbers to float32.
        beta_1, beta_2, epsilon = (
            tf.constant(number, dtype)
            for number in (adam.beta_1, adam.beta_2, adam.epsilon)
        )
        # Number of this update, from 1, for the bias correction.
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
    """Adam (Kingma and Ba, A Method for Stochastic Optimization, 2014)."""


class AdamW(_OnePass, keras.optimizers.AdamW):
    """AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017)."""


def _beside(variable: tf.Variable, other: keras.Variable) -> tf.Variable:
    """Returns the copy of `other` on the device of one copy of a variable.

    Args:
      variable: One copy of a variable.
      other: Keras variable with a copy on each of several devices, or with one value.
    """
    # Mirrored variables hold their copies in `values`; other variables are their own
    # copy.
    copies = getattr(other.value, "values", (other.value,))
    return next((copy for copy in copies if copy.device == variable.device), copies[0])


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
        """Updates one variable; of a sparse gradient only its rows.

        Args:
          gradient: Tensor, or IndexedSlices without repeated rows.
          variable: Variable to update.
          learning_rate: Scalar.
        """
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
