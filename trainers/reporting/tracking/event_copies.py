"""Copies of event files on a remote file system.

The run folder itself stays local: it requires locks, atomic renames, and data that is
on the disk when fsync returns, and an object store has none of these. A thread copies
the files that TensorBoard reads. It copies whole files, since objects cannot be
appended to. The run waits for the thread only at its end, for a limited time.
"""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Collection

import tensorflow as tf

from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.common.write_errors import WriteErrorReporter

_SECONDS_BETWEEN = 15.0
# The pause is at least this many times as long as the last copy.
_PAUSES_PER_COPY = 5.0
_SECONDS_AT_THE_END = 60.0


class EventCopies:
    """Thread that copies a folder repeatedly."""

    def __init__(
        self,
        folder: pathlib.Path,
        target: str | None,
        console: Console,
        skipped: Collection[str] = (),
    ):
        """Prepares the thread; copies nothing.

        Args:
          folder: Folder of event files.
          target: Folder to copy to; None for no copies.
          console: Output for one warning when copying fails.
          skipped: Names of subfolders that another process copies.
        """
        self._folder = folder
        self._target = target
        self._console = console
        self._skipped = skipped
        self._copied: dict[pathlib.Path, tuple[int, int]] = {}
        self._spell = WriteErrorReporter(
            console,
            f"training goes on, and they stay in {folder}",
            f"are copied to {target} again",
            describe_error=_words,
        )
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._target is not None:
            self._thread = threading.Thread(target=self._keep_copying, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Copies new data one last time; gives up after a minute."""
        if self._thread is None:
            return
        self._ends.set()
        self._thread.join(_SECONDS_AT_THE_END)
        if self._thread.is_alive():
            self._console.warn(
                f"event files could not all be copied to {self._target} in "
                f"{_SECONDS_AT_THE_END:.0f} s; they are in {self._folder}."
            )
        self._thread = None

    def _keep_copying(self) -> None:
        is_last = False
        pause = _SECONDS_BETWEEN
        while not is_last:
            # True once `stop` is called; one more copy follows.
            is_last = self._ends.wait(pause)
            began = time.monotonic()
            self._copy_new()
            took = time.monotonic() - began
            pause = max(_SECONDS_BETWEEN, _PAUSES_PER_COPY * took)

    def _copy_new(self) -> None:
        what = f"event files cannot be copied to {self._target}"
        if self._spell.attempt(what, self._copy_all):
            self._spell.end("event files")

    def _copy_all(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            relative = path.relative_to(self._folder)
            if relative.parts[0] not in self._skipped and path.is_file():
                self._copy(path, f"{self._target}/{relative.as_posix()}")

    def _copy(self, path: pathlib.Path, target: str) -> None:
        status = path.stat()
        # Taken before the copy, so that data written during the copy is copied next
        # time.
        state = (status.st_size, status.st_mtime_ns)
        if self._copied.get(path) != state:
            tf.io.gfile.makedirs(target.rpartition("/")[0])
            tf.io.gfile.copy(str(path), target, overwrite=True)
            self._copied[path] = state


def _words(error: Exception) -> str:
    """Returns an error's message on one line; file system plug-ins raise any class."""
    return " ".join(str(error).split())[:200]


def check_target(target: str | None) -> None:
    """Rejects a file system that TensorFlow does not know, without any network access.

    Args:
      target: Value of `--tensorboard_copy`.

    Raises:
      UsageError: The file system is unknown; the message lists the known ones.
    """
    if target is None or "://" not in target:
        return
    scheme = target.partition("://")[0]
    # The local file system has the empty scheme.
    known = sorted(filter(None, tf.io.gfile.get_registered_schemes()))
    if scheme not in known:
        names = ", ".join(f"{name}://" for name in known)
        raise UsageError(
            f"--tensorboard_copy={target} is on a file system that tf.io.gfile does "
            f"not know: give a folder of this machine, or one of {names}."
        )
