"""Builds the optimizer of a run, or takes over that of the user."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.optimizers import (
    build_optimizer_anew,
    count_atomically,
    find_weights_again,
    scale_learning_rate,
    stop_reducing_gradients,
    weights_of,
)
from trainers.config.optimizer import OptimizerConfig
from trainers.model.optimizers.adagrad import Adagrad
from trainers.model.optimizers.adam import Adam, AdamW
from trainers.model.optimizers.learning_rate import LearningRate
from trainers.model.optimizers.several import parts_of


def build_optimizer(
    config: OptimizerConfig, learning_rate: LearningRate | float, model: keras.Model
) -> keras.optimizers.Optimizer:
    """Returns an optimizer with its variables built, which applies gradients as given.

    Callbacks may change a learning rate that is a number.
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
    _apply_as_given(optimizer)
    return optimizer


def adopt_optimizer(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
    scaled: Callable[[Any], Any],
) -> None:
    """Makes an optimizer of the user's train under a strategy, in whose scope this is.

    It may have the state of an earlier training. `scaled` is a function from its
    learning rate to that of a step.

    Raises:
      UsageError: It was built for other weights, as before a layer was unfrozen.
    """
    for part, variables in parts_of(optimizer, model.trainable_variables):
        known = set(map(id, weights_of(part) if part.built else variables))
        unknown = [v.path for v in variables if id(v) not in known]
        if unknown:
            raise UsageError(
                f"{type(part).__name__} of the program was built for other weights "
                f"than {', '.join(unknown)}: compile the model with a new optimizer."
            )
        build_optimizer_anew(part, variables)
        _apply_as_given(part)
        scale_learning_rate(part, scaled)


def adopt_again(
    optimizer: keras.optimizers.Optimizer, scaled: Callable[[Any], Any]
) -> None:
    """Prepares an optimizer of `adopt_optimizer` for a further training.

    Its Keras variables and the model's hold the strategy's variables again. Call it in
    the strategy's scope.
    """
    for part, _ in parts_of(optimizer, []):
        find_weights_again(part)
        _apply_as_given(part)
        scale_learning_rate(part, scaled)


def _apply_as_given(optimizer: keras.optimizers.Optimizer) -> None:
    # The strategy has already summed the gradients; Keras would sum them again.
    stop_reducing_gradients(optimizer)
    count_atomically(optimizer)


def update_where_variables_are(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer compute each variable's update on the variable's device.

    Otherwise one device computes all updates, and the values travel there and back.
    """
    update_step = optimizer.update_step

    def on_its_device(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        with tf.device(variable.device):
            update_step(gradient, variable, learning_rate)

    optimizer.update_step = on_its_device
