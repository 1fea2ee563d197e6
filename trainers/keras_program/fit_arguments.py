"""The arguments of a program's call of `keras.Model.fit`."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from strategies.common.errors import UsageError
from strategies.common.text import shown
from trainers.keras_program.epoch_lengths import EpochLengths


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FitArguments:
    """Arguments of `keras.Model.fit`, with its names and meaning."""

    x: Any
    y: Any
    batch_size: int | None
    epochs: int
    verbose: Any
    callbacks: Sequence[keras.callbacks.Callback]
    validation_split: float
    validation_data: Any
    shuffle: bool
    class_weight: Mapping[int, float] | None
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: int | Sequence[int]

    def is_validated(self, epoch: int) -> bool:
        """Returns whether `fit` evaluates after an epoch, counted from 0."""
        # keras/src/trainers/trainer.py, `_should_eval`.
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq

    def lengths(self, num_batches: int) -> EpochLengths:
        """Returns the numbers of steps of the epochs.

        Args:
          num_batches: Number of batches of a pass over the data.
        """
        return EpochLengths(self.steps_per_epoch or num_batches, num_batches)


def arguments_of_call(
    fit: Callable[..., Any], model: keras.Model, args: Any, kwargs: Any
) -> FitArguments:
    """Returns the arguments of one call of `fit`.

    Args:
      fit: Keras's own `fit`, whose signature names the arguments.
      model: Model whose `fit` was called.
      args: Positional arguments.
      kwargs: Arguments by name.

    Raises:
      UsageError: `fit` has no such argument, or cannot use a number.
    """
    try:
        bound = inspect.signature(fit).bind(model, *args, **kwargs)
    except TypeError as error:
        raise UsageError(f"fit {error}: give it what Keras's has.") from error
    bound.apply_defaults()
    given = {name: bound.arguments[name] for name in _NAMES}
    given["callbacks"] = _callbacks(given["callbacks"])
    for name, value in given.items():
        if isinstance(value, numbers.Integral):
            # Also NumPy's.
            given[name] = value = int(value)
        if name not in _FROM_ONE or value is None:
            continue
        if not isinstance(value, int) or value < 1:
            raise UsageError(
                f"fit({name}={shown(repr(value))}) is not accepted: give a whole "
                "number from 1."
            )
    return FitArguments(**given)


_FROM_ONE = (
    *("epochs", "batch_size", "steps_per_epoch"),
    *("validation_steps", "validation_batch_size"),
)
_NAMES = tuple(field.name for field in dataclasses.fields(FitArguments))


def _callbacks(given: Any) -> Sequence[keras.callbacks.Callback]:
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    return list(keras.tree.flatten(given)) if given else []
