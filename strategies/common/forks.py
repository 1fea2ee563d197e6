"""Methods that are called where this process forks."""

import os
import weakref
from collections.abc import Callable
from typing import Any


def call_at_forks(**methods: Callable[[], object]) -> None:
    """Calls methods at each fork of this process while their object lives.

    `os.register_at_fork` keeps functions for ever, so that it gets no reference to the
    object.

    Args:
      methods: Methods by the names of the arguments of `os.register_at_fork`.
    """
    functions: Any = {name: _weak(method) for name, method in methods.items()}
    os.register_at_fork(**functions)


def _weak(method: Callable[[], object]) -> Callable[[], None]:
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := reference()) is not None:
            alive()

    return call
