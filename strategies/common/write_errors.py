"""A disk that is full or fails costs what cannot be written there, not the run."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from strategies.common.console import Console

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def disk_error(error: BaseException) -> str | None:
    """What the system says of a disk, or None if an error is of something else.

    TensorFlow has no class for it: a full disk is a ResourceExhaustedError, as is a
    lack of memory, and a file too large an OutOfRangeError. Its messages end in the
    system's own words, after a semicolon (tensorflow/core/platform/default/
    posix_file_system.cc, `IOError`).
    """
    if isinstance(error, OSError):
        return error.strerror if error.errno in _NUMBERS else None
    text = str(error)
    return next((w for w in map(os.strerror, _NUMBERS) if f"; {w}" in text), None)


class Spell:
    """A stretch of time in which something cannot be written, told about once."""

    def __init__(
        self,
        console: Console,
        consequence: str = "training goes on",
        recovery: str = "can be written again",
        words_of: Callable[[Exception], str | None] = disk_error,
    ):
        """Begins with all well.

        Args:
          console: is told.
          consequence: what becomes of the run.
          recovery: what is said of something when it is over.
          words_of: what is wrong, by an error; None if that is no such spell's.
        """
        self._console = console
        self._consequence = consequence
        self._recovery = recovery
        self._words_of = words_of
        self._words: str | None = None

    @property
    def words(self) -> str | None:
        """What is wrong while it lasts, None while all is well."""
        return self._words

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Writes something, and returns whether that was possible.

        Args:
          what: says of something that it cannot be written, for that case.
          write: raises what is none of the spell's errors to the caller.
        """
        try:
            write()
        except Exception as error:
            words = self._words_of(error)
            if words is None:
                raise
            if self._words is None:
                self._console.warn(f"{what} ({words}); {self._consequence}.")
            self._words = words
            return False
        return True

    def end(self, what: str) -> None:
        """Says that it is over, if there was one."""
        if self._words is not None:
            self._console.say(f"{what} {self._recovery}")
        self._words = None
