"""Attributes of others' modules and classes, replaced for a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def replaced(
    place: Any, names: Iterable[str], replacement: Callable[[str, Any], Any]
) -> Iterator[None]:
    """Replaces attributes of a module or class in the block."""
    originals = {name: getattr(place, name) for name in names}
    for name, original in originals.items():
        setattr(place, name, replacement(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(place, name, original)


@contextlib.contextmanager
def after_cleared_sessions(function: Callable[[], Any]) -> Iterator[None]:
    """Calls a function whenever the block clears Keras's session.

    `keras.utils.clear_session` has several names. It forgets Keras's defaults, and then
    puts another default graph in place of the one whose scopes hold outside of graphs
    (keras/src/backend/common/global_state.py).
    """

    def with_function(_: str, reset: Callable[[], None]) -> Callable[[], None]:
        def reset_and_call() -> None:
            reset()
            function()

        return reset_and_call

    with replaced(tf.compat.v1, ["reset_default_graph"], with_function):
        yield
