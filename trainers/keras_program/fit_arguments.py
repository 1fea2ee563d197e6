"""The arguments of a program's call of `keras.Model.fit`."""

import dataclasses
import inspect
import numbers
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.text import shown
from trainers.keras_program.epoch_lengths import EpochLengths
from trainers.run_dir.train_state import FitCall
from trainers.user_code.checks import has_own_step


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FitArguments:
    """Arguments of `keras.Model.fit`, with its names, meaning and defaults."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Sequence[keras.callbacks.Callback] = ()
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1

    def is_validated(self, epoch: int) -> bool:
        """Returns whether `fit` evaluates after an epoch, counted from 0."""
        # keras/src/trainers/trainer.py, `_should_eval`.
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq

    def lengths(self, num_batches: int) -> EpochLengths:
        """Returns the numbers of steps of epochs, by the batches of a pass."""
        return EpochLengths(self.steps_per_epoch or num_batches, num_batches)


def continued_call(
    was: FitCall, is_over: bool, now: FitCall, is_length_given: bool
) -> FitCall:
    """Returns the call as which a resumed `fit` continues.

    The steps of its checkpoint are counted from the earlier `initial_epoch`. A program
    that continues by itself gives another one when it is started again, and perhaps
    `epochs` that depend on it.

    Args:
      was: Call of an earlier process.
      is_over: True if no batch followed the checkpoint of the earlier call.
      now: Call of the present process.
      is_length_given: True if a flag says how long to train.

    Raises:
      UsageError: Epochs of the earlier call, or of later ones, would be left out.
    """
    if is_over and now.number == 1 and _is_shifted(was, now):
        raise UsageError(
            f"--resume=auto cannot continue a program that continues by itself: its "
            f"first {in_words(now)} comes after {now.updates:,} updates of the "
            f"optimizer, and came after {was.updates:,} before: choose another "
            "--run_dir, or load no model of an earlier process."
        )
    continued = dataclasses.replace(was, epochs=now.epochs)
    if is_length_given:
        return continued
    num_epochs = was.epochs - was.initial_epoch
    if not is_over and now.epochs - now.initial_epoch == num_epochs:
        return was
    is_moved = now.initial_epoch != was.initial_epoch
    if now.epochs < was.epochs and (is_moved or not is_over):
        raise UsageError(
            f"--resume=auto continues {in_words(was)}, and the program calls "
            f"{in_words(now)}: give epochs as before, or --epochs={now.epochs} to end "
            "there; if the program continues by itself, choose another --run_dir."
        )
    return continued


def _is_shifted(was: FitCall, now: FitCall) -> bool:
    """Returns whether a first call is a later one of a loop, by its equal length."""
    lengths = {call.epochs - call.initial_epoch for call in (was, now)}
    return was.updates < now.updates and len(lengths) == 1


def in_words(call: FitCall) -> str:
    """Returns a call of `fit` with the arguments that say how long it trains."""
    return f"fit(initial_epoch={call.initial_epoch}, epochs={call.epochs})"


def check_call(model: keras.Model, path: str) -> None:
    """Refuses a call of `fit` that cannot be taken over, in the program of a path."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"--script={path} calls fit in a thread: call it in the main "
            "one, where signals arrive."
        )
    made_under, present = model.distribute_strategy, tf.distribute.get_strategy()
    if made_under is not present or tf.distribute.has_strategy():
        kind = type(made_under).__name__
        raise UsageError(
            f"--script={path} makes its model under a {kind} of its own: "
            "leave it out; --strategy chooses one."
        )
    if not model.compiled:
        raise UsageError(
            f"--script={path} calls fit of a model that is not compiled: "
            "call its compile first."
        )
    if model.optimizer is None and not has_own_step(model):
        raise UsageError(
            f"--script={path} calls fit of a model without an optimizer: "
            "compile it with one."
        )


def arguments_of_call(
    fit: Callable[..., Any], model: keras.Model, args: Any, kwargs: Any
) -> FitArguments:
    """Returns the arguments of one call of Keras's `fit`.

    Raises:
      UsageError: `fit` has no such argument, or cannot use a number.
    """
    try:
        bound = inspect.signature(fit).bind(model, *args, **kwargs)
    except TypeError as error:
        raise UsageError(f"fit {error}: give it what Keras's has.") from error
    bound.apply_defaults()
    given = {name: bound.arguments[name] for name in _DEFAULTS}
    given["callbacks"] = _callbacks(given["callbacks"])
    for name, value in given.items():
        if isinstance(value, numbers.Integral):
            # Also NumPy's.
            given[name] = int(value)
    for name in (*_ANY_NUMBER, *_FROM_ONE):
        _check_number(name, given[name])
    _limit(given)
    return FitArguments(**given)


_ANY_NUMBER = ("epochs", "initial_epoch")
_FROM_ONE = (
    *("batch_size", "steps_per_epoch", "validation_freq"),
    *("validation_steps", "validation_batch_size"),
)
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(FitArguments)}


def _check_number(name: str, value: Any) -> None:
    """Refuses all but numbers before the training, which would count with them."""
    if value is None and _DEFAULTS[name] is None:
        return
    is_list = isinstance(value, Collection) and not isinstance(value, str)
    if name == "validation_freq" and is_list:
        return
    if not isinstance(value, int) or (name in _FROM_ONE and value < 1):
        least = " from 1" if name in _FROM_ONE else ""
        raise UsageError(
            f"fit({name}={shown(repr(value))}) is not accepted: give a whole "
            f"number{least}."
        )


def _limit(given: dict[str, Any]) -> None:
    """Applies Keras's limits of epochs and steps, for trying out a program.

    A limit of steps is also the number of steps where a call gives none
    (keras/src/trainers/epoch_iterator.py). KERAS_MAX_EPOCHS and
    KERAS_MAX_STEPS_PER_EPOCH of the environment set limits too.
    """
    most_steps = keras.config.max_steps_per_epoch()
    limits = {
        "epochs": keras.config.max_epochs(),
        "steps_per_epoch": most_steps,
        "validation_steps": most_steps,
    }
    for name, most in limits.items():
        if most and (given[name] is None or most < given[name]):
            given[name] = most


def _callbacks(given: Any) -> Sequence[keras.callbacks.Callback]:
    if isinstance(given, keras.callbacks.CallbackList):
        if type(given) is not keras.callbacks.CallbackList:
            raise UsageError(
                f"fit has a {type(given).__name__} for its callbacks, and would call "
                "none of its methods: give a list of callbacks."
            )
        return list(given.callbacks)
    callbacks = list(keras.tree.flatten(given)) if given else []
    for callback in callbacks:
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise UsageError(
                f"fit has {shown(repr(callback))} among its callbacks: give objects of "
                "keras.callbacks.Callback, such as EarlyStopping() with parentheses."
            )
    return callbacks
