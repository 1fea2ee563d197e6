"""Learning rate by step, and its factor after a rollback."""

import math
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.optimizers import counter_of, schedule_of
from trainers.config.optimizer import OptimizerConfig
from trainers.model.optimizers.several import parts_of


def rate_of(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """Returns the learning rate of an optimizer for the update after `step` others."""
    # The first of several is reported.
    optimizer, _ = parts_of(optimizer, [])[0]
    schedule = schedule_of(optimizer)
    if schedule is None:
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    # As in a step: with the counter, and what a schedule assigns there is its state.
    counter = counter_of(optimizer)
    with keras.StatelessScope([(counter, tf.constant(step, counter.dtype))]):
        return float(keras.ops.convert_to_numpy(schedule(counter)))


def num_updates(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the number of updates that an optimizer has applied."""
    optimizer, _ = parts_of(optimizer, [])[0]
    return int(keras.ops.convert_to_numpy(counter_of(optimizer)))


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
        """Sets the factor in this process only."""
        self.variable.assign(factor)
        self.hold()

    def hold(self) -> None:
        """Reads the number from the variable, before steps are traced."""
        self._held = float(self.variable.numpy())

    def times(self, rate: Any) -> Any:
        """Returns the learning rate multiplied by the factor."""
        if self._may_change:
            rate = tf.convert_to_tensor(rate)
            return rate * tf.cast(self.variable, rate.dtype)
        # No multiplication in the graph of a run without rollback.
        return rate if self._held == 1.0 else rate * self._held


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
        scale: LearningRateScale,
    ):
        self._config = config
        self._scale = scale
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
        return self._scale.times(self._peak * factor)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("The run's config.json describes the schedule.")


def _cosine(progress: tf.Tensor) -> tf.Tensor:
    return (1 + tf.cos(math.pi * progress)) / 2


def _step(progress: tf.Tensor) -> tf.Tensor:
    return tf.where(progress < 0.5, 1.0, tf.where(progress < 0.75, 0.1, 0.01))


_FACTORS = {"constant": tf.ones_like, "cosine": _cosine, "step": _step}
