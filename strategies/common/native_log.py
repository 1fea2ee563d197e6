"""Keeps TensorFlow's start-up log from the terminal, and the terminal in order."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator


def prepare_standard_streams() -> None:
    """Makes printing safe, whatever a parent process has left us with.

    A stream that is closed is replaced by one that goes nowhere: otherwise the next
    file to be opened takes its number, and C++ logs into that file. Characters
    that a terminal cannot show are written as escapes instead of raising.
    """
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
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def native_log_hidden() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and shows it on an error.

    Loading TensorFlow 2.21 and looking for GPUs logs up to seven lines from C++,
    whatever TF_CPP_MIN_LOG_LEVEL is, before anything can tell it not to.
    """
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
