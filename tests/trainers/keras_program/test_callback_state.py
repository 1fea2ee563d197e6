"""State of Keras's callbacks, and whether they observe batches."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from trainers.keras_program.callback_state import (
    observes_batches,
    observes_test_batches,
)


class _Counting:
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)  # type: ignore[misc]

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_test_batch_end(batch, logs)  # type: ignore[misc]


def _made(kind: type[keras.callbacks.Callback]) -> keras.callbacks.Callback:
    return kind("unused.keras")


@pytest.mark.parametrize(
    "kind",
    [
        keras.callbacks.ModelCheckpoint,
        keras.callbacks.BackupAndRestore,
        keras.callbacks.TensorBoard,
    ],
)
def test_a_subclass_observes_the_batches_that_its_class_does_not(
    kind: type[keras.callbacks.Callback],
) -> None:
    plain = _made(kind)
    assert not observes_batches(plain)
    assert not observes_test_batches(plain)
    counting = _made(type("Counting", (_Counting, kind), {}))
    assert observes_batches(counting)
    assert observes_test_batches(counting)


def test_a_callback_that_profiles_batches_observes_them() -> None:
    board = keras.callbacks.TensorBoard("unused", profile_batch=(2, 3))
    assert observes_batches(board)
    assert not observes_test_batches(board)
