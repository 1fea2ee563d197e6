"""State of Keras's callbacks in checkpoints, and whether they observe batches."""

from __future__ import annotations

import base64
import inspect
import io
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from strategies.common.private_apis.callbacks import profiles_batches

# Keys of what JSON has no word for.
_FLOAT, _ARRAY = "/float", "/array"
# Key of the history beside the names of logs.
_EPOCHS = "/epochs"
# What Keras sets, and what belongs to a process.
_LEFT_OUT = ("params", "history", "model")

# Callbacks of Keras that have methods for batches and do nothing in them by default.
_OF_EPOCHS_BY_DEFAULT = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
)
_BATCH_METHODS: Sequence[str] = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


def state_of(callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, Any]:
    """Returns what callbacks have in their attributes, as JSON values.

    These are numbers, texts and arrays, and lists and dictionaries of them, such as the
    best weights so far. Files, functions and the like are left out.

    Args:
      callbacks: Callbacks of a `fit`.
    """
    return {
        _name_of(index, callback): {
            name: encoded
            for name, value in vars(callback).items()
            if name not in _settings_of(callback) and not name.startswith("_")
            for encoded in _encoded(value)
        }
        for index, callback in enumerate(callbacks)
    }


def restore(
    callbacks: Sequence[keras.callbacks.Callback], state: Mapping[str, Any]
) -> None:
    """Sets the attributes of callbacks, after `on_train_begin` has reset them.

    Args:
      callbacks: Callbacks of a `fit`.
      state: Result of `state_of`; entries of other callbacks are not used.
    """
    for index, callback in enumerate(callbacks):
        for name, value in state.get(_name_of(index, callback), {}).items():
            setattr(callback, name, _decoded(value))


def _settings_of(callback: keras.callbacks.Callback) -> Collection[str]:
    """Returns the names of attributes that the program or Keras sets anew.

    EarlyStopping changes the sign of its argument `min_delta` before its first epoch.
    """
    return {*inspect.signature(type(callback)).parameters, *_LEFT_OUT}


def _name_of(index: int, callback: keras.callbacks.Callback) -> str:
    return f"{index}/{type(callback).__name__}"


def prepare(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Prepares callbacks to go on with what they wrote before, in a resumed run."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            # Otherwise it empties its file when it begins.
            callback.append = True


def state_of_history(history: keras.callbacks.History) -> dict[str, Any]:
    """Returns the logs of all epochs as JSON values, and the epochs' numbers."""
    return {
        **{
            name: [value if math.isfinite(value) else None for value in values]
            for name, values in history.history.items()
        },
        _EPOCHS: list(history.epoch),
    }


def restored_history(
    state: Mapping[str, Any],
) -> tuple[list[int], dict[str, list[float]]]:
    """Returns the numbers of epochs and their logs, from `state_of_history`."""
    logs = {
        name: [math.nan if value is None else value for value in values]
        for name, values in state.items()
        if name != _EPOCHS
    }
    return [int(epoch) for epoch in state.get(_EPOCHS, [])], logs


def observes_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback has something to do at every batch."""
    if isinstance(callback, _OF_EPOCHS_BY_DEFAULT):
        every = getattr(callback, "save_freq", None) or callback.update_freq
        if every != "epoch" or profiles_batches(callback):
            return True
    return _has_any(callback, _BATCH_METHODS)


def observes_test_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback has something to do at every batch of a validation."""
    return _has_any(callback, ("on_test_batch_begin", "on_test_batch_end"))


def _has_any(callback: keras.callbacks.Callback, names: Sequence[str]) -> bool:
    base = keras.callbacks.Callback
    for kind in _OF_EPOCHS_BY_DEFAULT:
        if isinstance(callback, kind):
            # A subclass has methods besides those that do nothing by default.
            base = kind
    # LambdaCallback keeps functions in the instance.
    return any(
        name in vars(callback)
        or getattr(type(callback), name) is not getattr(base, name)
        for name in names
    )


def _encoded(value: Any) -> list[Any]:
    """Returns a list of the JSON value; empty if there is none."""
    if value is None or isinstance(value, (bool, int, str)):
        return [value]
    if isinstance(value, (float, np.floating)):
        return [{_FLOAT: repr(float(value))}]
    if isinstance(value, np.integer):
        return [int(value)]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        buffer = io.BytesIO()
        np.save(buffer, value)
        return [{_ARRAY: base64.b64encode(buffer.getvalue()).decode()}]
    if isinstance(value, (list, tuple)):
        parts = [_encoded(part) for part in value]
        return [[part for (part,) in parts]] if all(parts) else []
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        entries = {key: _encoded(part) for key, part in value.items()}
        if all(entries.values()):
            return [{key: part for key, (part,) in entries.items()}]
    return []


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT}:
        return float(value[_FLOAT])
    if value.keys() == {_ARRAY}:
        return np.load(io.BytesIO(base64.b64decode(value[_ARRAY])), allow_pickle=False)
    return {key: _decoded(part) for key, part in value.items()}
