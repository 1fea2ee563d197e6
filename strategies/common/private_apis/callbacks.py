"""Private names of callbacks."""

from __future__ import annotations

import keras


def profiles_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback is a TensorBoard with `profile_batch`.

    It keeps the range of batches under private names alone (keras/src/callbacks/
    tensorboard.py, `_init_profile_batch`).
    """
    is_board = isinstance(callback, keras.callbacks.TensorBoard)
    return is_board and callback._should_trace
