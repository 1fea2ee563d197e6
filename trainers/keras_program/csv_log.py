"""Rows that CSVLogger wrote after a checkpoint to which its training returns."""

from __future__ import annotations

import os
from typing import Any

import keras


def bytes_of_log(log: keras.callbacks.CSVLogger) -> int | None:
    """Returns the size of the file of a log; None unless it is on this machine."""
    # Keras flushes after every row.
    return os.path.getsize(log.filename) if os.path.isfile(log.filename) else None


def take_back_rows(log: keras.callbacks.CSVLogger, size: Any) -> None:
    """Removes the rows after the first bytes of a file that the log has opened.

    The size is one of `bytes_of_log`, or anything else in a checkpoint that somebody
    has changed.
    """
    is_size = type(size) is int and size >= 0
    if not is_size or log.csv_file is None or (bytes_of_log(log) or 0) <= size:
        return
    log.csv_file.truncate(size)
    # Unless it was opened to append, the next row would leave a gap.
    log.csv_file.seek(0, os.SEEK_END)
    # The header may have been taken back as well.
    log.append_header, log.writer = size == 0, None
