"""Optimizers and learning-rate schedules, from Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from strategies.library_internals import count_atomically, stop_reducing_gradients
from trainers.adagrad import Adagrad
from trainers.adam import Adam, AdamW
from trainers.optimizer_config import OptimizerConfig


def build_optimizer(
    config: OptimizerConfig, learning_rate: LearningRate, model: keras.Model
) -> keras.optimizers.Optimizer:
    """An optimizer with its variables made, which applies gradients as they are.

    Args:
      config: the rule and its settings.
      learning_rate: of each step.
      model: whose trainable variables it will change.
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
    stop_reducing_gradients(optimizer)
    count_atomically(optimizer)
    return optimizer


def update_where_variables_are(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer compute each variable's update on the variable's device.

    Otherwise all are computed on one device, and sent there and back.
    """
    update_step = optimizer.update_step

    def on_its_device(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        with tf.device(variable.device):
            update_step(gradient, variable, learning_rate)

    optimizer.update_step = on_its_device


class RateFactor:
    """What a run's learning rate is multiplied with: one, unless it was rolled back."""

    def __init__(self, may_change: bool):
        """Makes a variable, in a strategy's scope.

        Args:
          may_change: whether it can change once steps are traced. If not, they hold
            the number and read no variable.
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
        """In this process alone."""
        self.variable.assign(factor)
        self.hold()

    def hold(self) -> None:
        """Takes the number from the variable, before steps are traced."""
        self._held = float(self.variable.numpy())

    def times(self, rate: tf.Tensor) -> tf.Tensor:
        """The learning rate with it."""
        if self._may_change:
            return rate * tf.convert_to_tensor(self.variable)
        return rate if self._held == 1.0 else rate * self._held


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a step: a linear warm-up, then the chosen schedule.

    With peak rate r (`OptimizerConfig.peak_learning_rate`), w warm-up steps, n steps
    in all and x = (step - w) / (n - w): warm-up is r (step + 1) / w; cosine is
    r (1 + cos(pi x)) / 2 (Loshchilov and Hutter, SGDR, 2016, without restarts); step
    is r, r/10 from x = 0.5 and r/100 from x = 0.75 on.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        train_steps: int,
        global_batch_size: int,
        factor: RateFactor | None = None,
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
