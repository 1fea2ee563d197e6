"""Write errors that a run survives, such as a full disk."""

import errno
import os
from collections.abc import Callable

from strategies.common.console import Console

# Permission denied, operation not permitted.
DENIALS = (errno.EACCES, errno.EPERM)
# What helps against an error, on its disk.
_REMEDIES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EIO: "repair the fault",
    **dict.fromkeys((errno.EROFS, *DENIALS), "permit writing"),
}


def disk_error(error: BaseException) -> str | None:
    """Returns the system's description of a disk error; None for any other error."""
    if isinstance(error, OSError):
        # Other resources can be denied as well; only errors about files have a name.
        is_other = error.errno in DENIALS and error.filename is None
        if error.errno not in _REMEDIES or is_other:
            return None
        # h5py quotes the words of the system in several lines of its own.
        words, text = os.strerror(error.errno), str(error.strerror)
        return words if words in text else text
    # TensorFlow has no class for it: a full disk is a ResourceExhaustedError, as is a
    # lack of memory, and a file too large an OutOfRangeError. Its messages end in the
    # system's own words, after a semicolon (tensorflow/core/platform/default/
    # posix_file_system.cc, `IOError`).
    text = str(error)
    return next((w for w in map(os.strerror, _REMEDIES) if f"; {w}" in text), None)


def remedy_of(words: str) -> str:
    """Returns what to do about a disk error, by its description."""
    remedies = {os.strerror(number): to_do for number, to_do in _REMEDIES.items()}
    # Of an object store, whose words are its own.
    return remedies.get(words, _REMEDIES[errno.EIO])


class WriteErrorReporter:
    """Reporter of failing writes: a warning at the first one, a line at recovery."""

    def __init__(
        self,
        console: Console,
        consequence: str = "training goes on",
        recovery: str = "can be written again",
        describe_error: Callable[[Exception], str | None] = disk_error,
    ):
        """Starts without a failure.

        Args:
          console: Console for the warning and the report of the recovery.
          consequence: Consequence for the run, the end of the warning.
          recovery: End of the line that reports the recovery.
          describe_error: Function from an error to its description; None for an error
            of another kind, which `attempt` raises.
        """
        self._console = console
        self._consequence = consequence
        self._recovery = recovery
        self._words_of = describe_error
        self._words: str | None = None

    @property
    def words(self) -> str | None:
        """Description of the latest failure until `end` is called; None without one."""
        return self._words

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Writes something and returns whether that succeeded.

        Args:
          what: Start of the warning, a statement that something cannot be written.
          write: Function that writes. Its errors of another kind reach the caller.
        """
        try:
            write()
        except Exception as error:
            words = self._words_of(error)
            if words is None:
                raise
            # One warning a period: a full disk makes every later write fail, too.
            if self._words is None:
                self._console.warn(f"{what} ({words}); {self._consequence}.")
            self._words = words
            return False
        return True

    def end(self, what: str) -> None:
        """Ends the period and reports the recovery, if there was a failure.

        Args:
          what: Start of the reported line, the subject that can be written again.
        """
        if self._words is not None:
            self._console.say(f"{what} {self._recovery}")
        self._words = None
