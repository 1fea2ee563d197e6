"""Arguments of `fit` as Keras takes them."""

from __future__ import annotations

import keras

from trainers.keras_program.fit_arguments import arguments_of_call


def test_limits_of_keras_hold() -> None:
    """KERAS_MAX_EPOCHS=2 and KERAS_MAX_STEPS_PER_EPOCH=3 set the same limits."""
    model = keras.Sequential([keras.layers.Dense(1)])
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    try:
        long = arguments_of_call(keras.Model.fit, model, (), {"epochs": 9})
        given = {"steps_per_epoch": 2, "validation_steps": 4}
        short = arguments_of_call(keras.Model.fit, model, (), given)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    assert (long.epochs, long.steps_per_epoch, long.validation_steps) == (2, 3, 3)
    assert (short.epochs, short.steps_per_epoch, short.validation_steps) == (1, 2, 3)
