"""Replacements of functions that hold in some threads."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class PerThread(Generic[Value]):
    """Values of threads, and a replacement as long as one of them has a value.

    MirroredStrategy traces each replica in a thread and switches between the threads
    inside a model that communicates: a thread must not undo what another needs.
    """

    def __init__(
        self, replace: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Replaces nothing yet; `replace` returns the context of the replacement."""
        self._replace = replace
        self._values: dict[int, Value] = {}
        self._replaced = contextlib.ExitStack()

    @contextlib.contextmanager
    def having(self, value: Value) -> Iterator[None]:
        """Gives this thread a value in the block; the first thread replaces."""
        thread = threading.get_ident()
        if not self._values:
            self._replaced.enter_context(self._replace())
        self._values[thread] = value
        try:
            yield
        finally:
            del self._values[thread]
            if not self._values:
                self._replaced.close()

    def present(self) -> Value | None:
        """Returns the value of this thread; None outside of its block."""
        return self._values.get(threading.get_ident())
