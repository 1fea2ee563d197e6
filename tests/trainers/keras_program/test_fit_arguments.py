"""Arguments of `fit` as Keras takes them."""

from typing import Any

import keras
import numpy as np
import pytest

from strategies.common.errors import UsageError
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


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ({"epochs": "3"}, "a whole number."),
        ({"epochs": 2.5}, "a whole number."),
        ({"epochs": None}, "a whole number."),
        ({"initial_epoch": 0.5}, "a whole number."),
        ({"batch_size": 0}, "a whole number from 1."),
        ({"validation_freq": 0}, "a whole number from 1."),
        ({"validation_freq": 1.5}, "a whole number from 1."),
        ({"validation_freq": "2"}, "a whole number from 1."),
    ],
    ids=str,
)
def test_what_is_no_number_is_refused_before_the_training(
    given: dict[str, Any], accepted: str
) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(UsageError) as refused:
        arguments_of_call(keras.Model.fit, model, (), given)
    ((name, value),) = given.items()
    assert str(refused.value) == (
        f"fit({name}={value!r}) is not accepted: give {accepted}"
    )


def test_numbers_of_numpy_and_lists_of_epochs_are_taken() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    given = {"epochs": np.int64(3), "batch_size": None, "validation_freq": [1, 3]}
    found = arguments_of_call(keras.Model.fit, model, (), given)
    assert (type(found.epochs), found.epochs, found.batch_size) == (int, 3, None)
    assert [found.is_validated(epoch) for epoch in range(3)] == [True, False, True]
