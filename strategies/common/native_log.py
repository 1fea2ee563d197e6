"""TensorFlow's start-up log, and safe standard streams."""

import atexit
import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import NoReturn

from strategies.common.errors import ExitCode


def prepare_standard_streams() -> None:
    """Reopens closed standard streams and makes them accept any character.

    A parent process may have closed them.
    """
    # Without this the next opened file takes the number of a closed stream, and C++
    # logs into that file. `os.open` returns the lowest free number.
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            # Characters that a terminal cannot show become escapes, not exceptions.
            stream.reconfigure(errors="backslashreplace")


def silence_streams_that_fail() -> None:
    """Flushes the standard streams, and discards text that cannot be written.

    Python flushes them at exit, and ends the process with 120 if that fails, as on a
    full disk (`Py_FinalizeEx`).
    """
    for stream in (sys.stdout, sys.stderr):
        # A program may have put None there, or a file that it closed.
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_at_once(exit_code: int) -> NoReturn:
    """Ends the process without deleting Python's objects, and so TensorFlow's.

    Calls what libraries and the user's code have registered with `atexit`. There
    TensorFlow 2.21 deletes the source files of functions that AutoGraph has converted
    (tensorflow/python/autograph/pyct/loader.py); without the call they stay in /tmp.

    Args:
      exit_code: Exit code of the process. At the end of a process without an error,
        threads and jobs of `concurrent.futures` that are no daemons complete first, as
        at Python's own exit.
    """
    # os._exit neither waits for threads nor calls `atexit` functions, and Python has no
    # public function for either.
    if exit_code == ExitCode.DONE:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except KeyboardInterrupt:
            exit_code = ExitCode.INTERRUPTED
    atexit._run_exitfuncs()
    # os._exit does not flush Python's buffers either.
    silence_streams_that_fail()
    os._exit(exit_code)


@contextlib.contextmanager
def native_log_hidden() -> Iterator[None]:
    """Hides output to file descriptor 2 inside the block, and shows it on an error.

    TensorFlow 2.21 logs up to seven lines from C++ while it loads and looks for GPUs,
    for every value of TF_CPP_MIN_LOG_LEVEL, before any setting can prevent it.
    """
    # C++ writes to the descriptor itself, so that replacing `sys.stderr` would not do.
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        except BaseException:
            held_back.seek(0)
            os.write(terminal, held_back.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
