"""TFRecord files, read and checked without TensorFlow's reader.

TensorFlow's reader trusts a record's claimed length and can end the process on
a damaged file. Here nothing is sliced or allocated before its length is known to
lie inside the file, and both checksums of every record are compared.

A record is, in little-endian order: uint64 length, uint32 masked checksum of
those 8 bytes, `length` bytes of data, uint32 masked checksum of the data. The
whole may be compressed by gzip; then the bytes that errors speak of are those of
what it decompresses to. Files are read some megabytes at a time.
"""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from strategies.settings import UsageError
from trainers.inputs.crc32c import masked_checksums_match
from trainers.inputs.record_walk import HEADER_BYTES, Records, RecordWalk, empty

_GZIP_MAGIC = b"\x1f\x8b"


def read_records(path: Path) -> Records:
    """Reads a whole file into memory and checks all of it.

    Raises:
      UsageError: the file cannot be read, is empty, is cut short or damaged.
    """
    pieces = list(read_pieces(path))
    return Records(
        path=path,
        payloads=[payload for piece in pieces for payload in piece.payloads],
        offsets=np.concatenate([piece.offsets for piece in pieces]),
        is_compressed=pieces[0].is_compressed,
    )


def read_pieces(path: Path) -> Iterator[Records]:
    """The records of a file, some megabytes at a time, each piece checked.

    Raises:
      UsageError: as for `read_records`, once it has come to where the damage is.
    """
    with _opened(path) as (stream, walk):
        yield from walk.records(stream)


def count_records(path: Path) -> int:
    """How many records a file has, by their lengths alone.

    Every length is checked, and that the records end where the file does; data is
    not. Of a file that is not compressed data is not even read.

    Raises:
      UsageError: the file cannot be read, is empty, is cut short or a length damaged.
    """
    with _opened(path) as (stream, walk):
        if walk.is_compressed:
            return sum(len(piece.payloads) for piece in walk.records(stream, False))
        return walk.count(stream)


def is_compressed(path: Path) -> bool:
    """Whether a file is what gzip makes.

    Raises:
      OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _is_compressed(file.read(HEADER_BYTES))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, RecordWalk]]:
    """What a file holds, decompressed if need be, and where the walk begins."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(HEADER_BYTES)
            file.seek(0)
            if not start:
                raise empty(path)
            if not _is_compressed(start):
                yield file, RecordWalk(path, is_compressed=False, size=size)
                return
            with gzip.open(file) as stream:
                yield stream, RecordWalk(path, is_compressed=True, size=None)  # type: ignore[misc]
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}): change its permissions or "
            "give another path."
        ) from error


def _is_compressed(start: bytes) -> bool:
    """Whether it begins as gzip's files do, and not by chance as a record's length."""
    if not start.startswith(_GZIP_MAGIC):
        return False
    zero: np.ndarray = np.zeros(1, np.int64)
    whole = len(start) == HEADER_BYTES
    return not (whole and masked_checksums_match(start, zero, zero + 8).all())
