"""State of Keras's callbacks in checkpoints, and whether they observe batches."""

import glob
import inspect
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from strategies.common.private_apis.models import (
    COUNTERS_OF_CALLBACKS,
    profiles_batches,
    restart_clocks,
)
from trainers.keras_program.lent_model.attributes import (
    adopt,
    name_of,
    private_names,
    set_attribute,
)
from trainers.run_dir.encoding import as_plain, decoded, encoded
from trainers.run_dir.train_state import EPOCHS

# What Keras sets.
_LEFT_OUT = ("params", "model")
# In the state of a CSVLogger, the size of its file. No attribute has such a name.
_BYTES = "/bytes"

# Callbacks of Keras that have methods for batches and do nothing in them by default.
_OF_EPOCHS_BY_DEFAULT = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)
_BATCH_METHODS: Sequence[str] = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


class CallbackState:
    """Attributes of callbacks, for checkpoints.

    These are numbers, texts, arrays and tensors, and lists, sets and dictionaries of
    them, such as the best weights so far. Files, functions and the like are left out,
    and what Keras's own classes keep for one process, apart from their counters.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        """Looks at callbacks of a `fit` as the program has made them."""
        self._callbacks = callbacks
        # The program may give a resumed run another argument. It is kept only if the
        # callback itself has changed it.
        self._made = [
            {
                name: encoded(vars(callback)[name])
                for name in inspect.signature(type(callback)).parameters
                if name in vars(callback)
            }
            for callback in callbacks
        ]

    def state(self) -> dict[str, Any]:
        """Returns the attributes as JSON values."""
        return {
            name_of(index, callback): {**_changed(callback, made), **_sizes(callback)}
            for index, (callback, made) in enumerate(
                zip(self._callbacks, self._made, strict=True)
            )
        }

    def prepare(self) -> None:
        """Prepares callbacks to go on with what they wrote before, in a resumed run."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                # Otherwise it empties its file when it begins.
                callback.append = True

    def reset_arguments(self) -> None:
        """Gives callbacks what the program made them with, which `state` leaves out."""
        for callback, made in zip(self._callbacks, self._made, strict=True):
            of_keras = _names_of_keras(type(callback))
            for name, content in made.items():
                if content and name not in of_keras:
                    set_attribute(callback, name, decoded(content[0]))

    def restore(self, state: Mapping[str, Any], is_over: bool) -> None:
        """Sets the attributes of callbacks, after `on_train_begin` has reset them.

        Args:
          state: Result of `state`; entries of other callbacks are not used.
          is_over: True for a `fit` that was over; a later one may have written rows.
        """
        adopt(self._callbacks, state)
        for index, callback in enumerate(self._callbacks):
            if isinstance(callback, keras.callbacks.TensorBoard):
                restart_clocks(callback)
            if isinstance(callback, keras.callbacks.CSVLogger) and not is_over:
                kept = state.get(name_of(index, callback), {})
                take_back_rows(callback, kept.get(_BYTES))


def _sizes(callback: keras.callbacks.Callback) -> dict[str, int | None]:
    is_log = isinstance(callback, keras.callbacks.CSVLogger)
    return {_BYTES: bytes_of_log(callback)} if is_log else {}


def bytes_of_log(log: keras.callbacks.CSVLogger) -> int | None:
    """Returns the size of the file of a log; None unless it is on this machine."""
    # Keras flushes after every row.
    return os.path.getsize(log.filename) if os.path.isfile(log.filename) else None


def take_back_rows(log: keras.callbacks.CSVLogger, size: Any) -> None:
    """Removes the rows after the first bytes of a file that the log has opened."""
    # Somebody may have changed the checkpoint that it is from.
    is_size = type(size) is int and size >= 0
    if not is_size or log.csv_file is None or (bytes_of_log(log) or 0) <= size:
        return
    log.csv_file.truncate(size)
    # Unless it was opened to append, the next row would leave a gap.
    log.csv_file.seek(0, os.SEEK_END)
    # The header may have been taken back as well.
    log.append_header, log.writer = size == 0, None


def _changed(
    callback: keras.callbacks.Callback, made: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """Returns the attributes that are not as the program has made them, as JSON."""
    contents = {
        name: encoded(value) for name, value in kept_attributes(callback).items()
    }
    return {
        name: content[0]
        for name, content in contents.items()
        if content and made.get(name) != content
    }


def kept_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Returns the attributes of a callback that no process sets anew."""
    of_keras = _names_of_keras(type(callback))
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in of_keras or name in COUNTERS_OF_CALLBACKS
    }


def _names_of_keras(kind: type[keras.callbacks.Callback]) -> Collection[str]:
    """Returns the names of attributes that Keras's own classes set anew.

    They are arguments, of which EarlyStopping changes the sign of `min_delta` before
    its first epoch, and attributes of one process, such as TensorBoard's writers.
    """
    names = {*_LEFT_OUT, *private_names(kind.__mro__)}
    if issubclass(kind, keras.callbacks.CSVLogger):
        # It looks whether its file has a header when it begins.
        names.add("append_header")
    for base in kind.__mro__:
        if base.__module__.startswith("keras."):
            names.update(inspect.signature(base).parameters)
    return names


def make_plain(history: keras.callbacks.History) -> None:
    """Turns variables and tensors in a history into numbers and arrays, as they are."""
    for values in history.history.values():
        if isinstance(values, list):
            values[:] = map(as_plain, values)


def state_of_history(history: keras.callbacks.History) -> dict[str, Any]:
    """Returns the logs of all epochs as JSON values, and the epochs' numbers.

    Logs that are no numbers, texts or arrays are left out.
    """
    logs = {
        name: content
        for name, values in history.history.items()
        for content in encoded(values)
    }
    # Keras makes the list when a training begins.
    return {**logs, EPOCHS: list(getattr(history, "epoch", ()))}


def restored_history(
    state: Mapping[str, Any],
) -> tuple[list[int], dict[str, list[Any]]]:
    """Returns the numbers of epochs and their logs, from `state_of_history`."""
    logs = {
        name: [decoded(value) for value in values]
        for name, values in state.items()
        if name != EPOCHS
    }
    return [int(epoch) for epoch in state.get(EPOCHS, [])], logs


def models_written_after(
    callbacks: Sequence[keras.callbacks.Callback], seconds: float
) -> list[str]:
    """Returns the paths of ModelCheckpoint with files that were written after a time.

    The time is in seconds since 1970.
    """
    found = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            # Such as best-{epoch:02d}.keras.
            parts = re.split(r"\{[^}]*\}", callback.filepath)
            files = glob.glob("*".join(map(glob.escape, parts)))
            if any(os.path.getmtime(file) > seconds for file in files):
                found.append(callback.filepath)
    return found


def observes_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback has something to do at every batch."""
    if isinstance(callback, _OF_EPOCHS_BY_DEFAULT):
        is_saver = isinstance(callback, keras.callbacks.ModelCheckpoint)
        every = callback.save_freq if is_saver else callback.update_freq
        if every != "epoch" or profiles_batches(callback):
            return True
    return _has_any(callback, _BATCH_METHODS)


def observes_test_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback has something to do at every batch of a validation."""
    return _has_any(callback, ("on_test_batch_begin", "on_test_batch_end"))


def _has_any(callback: keras.callbacks.Callback, names: Sequence[str]) -> bool:
    # A subclass overrides some of the methods that do nothing by default.
    kinds = (*_OF_EPOCHS_BY_DEFAULT, keras.callbacks.Callback)
    base = next((kind for kind in kinds if isinstance(callback, kind)), None)
    # Keras calls any object that has `set_model`. LambdaCallback keeps functions in
    # the instance.
    return base is None or any(
        name in vars(callback)
        or getattr(type(callback), name) is not getattr(base, name)
        for name in names
    )
