"""Copies of event files on a file system that is not this machine's.

The run folder itself stays local. What it promises needs locks, names that are replaced
at once and data that is on the disk when fsync returns, and an object store has none of
these. A thread copies what TensorBoard reads: whole files, since an object cannot be
added to. The run never waits for it but at its end, and not for ever.
"""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Collection

import tensorflow as tf

from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.common.write_errors import Spell

_SECONDS_BETWEEN = 15.0
# A copy that takes long is made more seldom.
_PAUSES_PER_COPY = 5.0
_SECONDS_AT_THE_END = 60.0


class EventCopies:
    """Copies a folder again and again, in a thread."""

    def __init__(
        self,
        folder: pathlib.Path,
        target: str | None,
        console: Console,
        skipped: Collection[str] = (),
    ):
        """Copies nothing yet.

        Args:
          folder: of event files.
          target: where to; None for nowhere.
          console: is told, once, that copying has failed.
          skipped: folders in it that somebody else copies.
        """
        self._folder = folder
        self._target = target
        self._console = console
        self._skipped = skipped
        self._copied: dict[pathlib.Path, tuple[int, int]] = {}
        self._spell = Spell(
            console,
            f"training goes on, and they stay in {folder}",
            f"are copied to {target} again",
            words_of=_words,
        )
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._target is not None:
            self._thread = threading.Thread(target=self._keep_copying, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Copies what is new once more, and gives up if that takes a minute."""
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
        state = (status.st_size, status.st_mtime_ns)
        if self._copied.get(path) != state:
            tf.io.gfile.makedirs(target.rpartition("/")[0])
            tf.io.gfile.copy(str(path), target, overwrite=True)
            self._copied[path] = state


def _words(error: Exception) -> str:
    """Plug-ins for file systems raise what they like."""
    return " ".join(str(error).split())[:200]


def check_target(target: str | None) -> None:
    """Refuses a file system that TensorFlow does not know. Asks nobody else.

    Raises:
      UsageError: naming those that it knows.
    """
    if target is None or "://" not in target:
        return
    scheme = target.partition("://")[0]
    known = sorted(filter(None, tf.io.gfile.get_registered_schemes()))
    if scheme not in known:
        names = ", ".join(f"{name}://" for name in known)
        raise UsageError(
            f"--tensorboard_copy={target} is on a file system that tf.io.gfile does "
            f"not know: give a folder of this machine, or one of {names}."
        )
