"""Keeps TensorFlow's start-up log from the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


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
