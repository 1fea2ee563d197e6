"""TFRecord files, read and checked without TensorFlow's reader.

TensorFlow's reader trusts the length in a record's header and can end the process on a
damaged file. This reader slices and allocates only after a length is known to lie
inside the file, and compares both checksums of every record.

A record is, in little-endian order: uint64 length, uint32 masked checksum of those 8
bytes, `length` bytes of data, uint32 masked checksum of the data. The file may be
compressed by gzip; then errors give byte offsets in the decompressed data. Files are
read some megabytes at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from strategies.common.errors import UsageError
from trainers.inputs.crc32c import masked_checksums_match

_GZIP_MAGIC = b"\x1f\x8b"


def read_records(path: Path) -> Records:
    """Reads a whole file into memory and checks all of it.

    Raises:
      UsageError: The file cannot be read, is empty, truncated or damaged.
    """
    pieces = list(read_pieces(path))
    return Records(
        path=path,
        payloads=[payload for piece in pieces for payload in piece.payloads],
        offsets=np.concatenate([piece.offsets for piece in pieces]),
        is_compressed=pieces[0].is_compressed,
    )


def read_pieces(path: Path) -> Iterator[Records]:
    """Yields the records of a file, some megabytes at a time, each piece checked.

    Raises:
      UsageError: The file cannot be read, is empty, truncated or damaged; raised once
        reading has reached the damage.
    """
    with _opened(path) as (stream, walk):
        yield from walk.records(stream)


def count_records(path: Path) -> int:
    """Returns the number of records in a file, by their lengths only.

    It checks every length, and that the last record ends at the end of the file. It
    does not check data; in an uncompressed file it does not even read data.

    Raises:
      UsageError: The file cannot be read, is empty, truncated, or a length is damaged.
    """
    with _opened(path) as (stream, walk):
        if walk.is_compressed:
            return sum(len(piece.payloads) for piece in walk.records(stream, False))
        return walk.count(stream)


def is_compressed(path: Path) -> bool:
    """Returns whether a file is compressed by gzip.

    Raises:
      OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return _is_compressed(file.read(HEADER_BYTES))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, RecordWalk]]:
    """Opens a file, decompressed if necessary, with a walk at its first record."""
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
    """Returns whether a file begins as gzip's files do, and not as a record."""
    if not start.startswith(_GZIP_MAGIC):
        return False
    # A record with a length that looks like gzip's magic number has a valid checksum.
    zero: np.ndarray = np.zeros(1, np.int64)
    whole = len(start) == HEADER_BYTES
    return not (whole and masked_checksums_match(start, zero, zero + 8).all())


# uint64 length and its uint32 checksum; the footer is the checksum of the data.
HEADER_BYTES = 12
FOOTER_BYTES = 4

# Bytes read at a time. A longer record is read in several parts.
PIECE_BYTES = 1 << 22
# Bytes read at a time to count records: the data between two lengths may be large and
# need not be read.
_BLOCK_BYTES = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """Data of consecutive records of one file.

    Attributes:
      path: Path of the file.
      payloads: Data of each record, in file order.
      offsets: Byte at which each record begins, int64 [num_records].
      first: Number in the file of the first of these records.
      is_compressed: True if offsets count bytes of the uncompressed stream.
    """

    path: Path
    payloads: list[bytes]
    offsets: np.ndarray
    first: int = 0
    is_compressed: bool = False

    def place(self, index: int) -> str:
        """Returns the place of a record, in the words that begin an error message."""
        offset = int(self.offsets[index])
        return place_of(self.path, self.first + index, offset, self.is_compressed)


def place_of(path: Path, number: int, offset: int, is_compressed: bool) -> str:
    """Returns the place of a record: its file, its number there, and its first byte."""
    stream = " of the uncompressed stream" if is_compressed else ""
    return f"{path}: record {number} at byte {offset}{stream}"


def empty(path: Path) -> UsageError:
    """Returns the error for a file without records."""
    return UsageError(f"{path}: byte 0: the file is empty: write it again.")


class RecordWalk:
    """Position in a file, moved record by record."""

    def __init__(self, path: Path, is_compressed: bool, size: int | None):
        """Starts before the first record.

        Args:
          path: Path of the file, named in errors.
          is_compressed: True if the stream to read is decompressed data.
          size: Bytes in the stream; None if unknown.
        """
        self._path = path
        self.is_compressed = is_compressed
        self._size = size
        # Number and first byte of the next record.
        self._number = 0
        self._offset = 0
        self._damage: Exception | None = None

    def count(self, stream: BinaryIO) -> int:
        """Counts the records and skips their data."""
        size = stream.seek(0, io.SEEK_END)
        while self._offset < size:
            stream.seek(self._offset)
            block = stream.read(_BLOCK_BYTES)
            headers, end = self._headers(block)
            if not headers:
                self._refuse_rest(block)
            # Only the last record of a block can pass the end of the file.
            if self._offset + end > size:
                self._advance(len(headers) - 1, headers[-1])
                self._refuse_rest(block[headers[-1] :])
            self._advance(len(headers), end)
        return self._number

    def records(self, stream: BinaryIO, check_data: bool = True) -> Iterator[Records]:
        """Yields all records, some megabytes at a time."""
        content = bytearray()
        is_at_end = False
        while not is_at_end:
            is_at_end = self._read_on(stream, content)
            headers, end = self._headers(content)
            if end > len(content):
                # The last record is incomplete; it stays in `content` for the next
                # piece.
                end = headers.pop()
                self._check_fits(content, end, len(headers))
            if headers:
                yield self._take(content, headers, end, check_data)
                self._advance(len(headers), end)
                del content[:end]
        # All records before the damage have been yielded.
        if self._damage is not None:
            reason = " ".join(str(self._damage).split())
            self._refuse(f"the compressed data is damaged ({reason})")
        if content:
            self._refuse_rest(content)
        if not self._number:
            raise empty(self._path)

    def _read_on(self, stream: BinaryIO, content: bytearray) -> bool:
        """Appends a piece to the content, and returns whether it was the last."""
        wanted = len(content) + PIECE_BYTES
        while len(content) < wanted:
            try:
                part = stream.read1(PIECE_BYTES)  # type: ignore[attr-defined]
            # Records before the damage are checked first.
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                part, self._damage = b"", error
            content += part
            if not part:
                return True
        return False

    def _headers(self, content: bytes | bytearray) -> tuple[list[int], int]:
        """Returns where records begin, and where the last one ends or would end.

        Raises:
          UsageError: A length is damaged.
        """
        offset, headers = 0, []
        while offset + HEADER_BYTES <= len(content):
            headers.append(offset)
            length = int.from_bytes(content[offset : offset + 8], "little")
            offset += HEADER_BYTES + length + FOOTER_BYTES
        offsets = np.array(headers, dtype=np.int64)
        # The loop above trusts lengths. Its offsets are wrong after the first damaged
        # length, which this check finds before anything uses them.
        intact = masked_checksums_match(content, offsets, offsets + 8)
        if not intact.all():
            index = int(np.argmin(intact))
            self._advance(index, headers[index])
            self._refuse("its length is damaged")
        return headers, offset

    def _check_fits(self, content: bytearray, start: int, number: int) -> None:
        """Raises UsageError at once if a record extends beyond a known end."""
        length = int.from_bytes(content[start : start + 8], "little")
        end = self._offset + start + HEADER_BYTES + length + FOOTER_BYTES
        if self._size is not None and end > self._size:
            self._advance(number, start)
            self._refuse_rest(content[start:])

    def _take(
        self, content: bytearray, headers: list[int], end: int, check_data: bool
    ) -> Records:
        """Returns the whole records at the beginning of the content.

        Raises:
          UsageError: The data of a record is damaged.
        """
        offsets = np.array(headers, dtype=np.int64)
        starts = offsets + HEADER_BYTES
        ends: np.ndarray = np.append(offsets[1:], end) - FOOTER_BYTES
        if check_data:
            intact = masked_checksums_match(content, starts, ends)
            if not intact.all():
                index = int(np.argmin(intact))
                self._advance(index, headers[index])
                self._refuse("its data is damaged")
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return Records(
            path=self._path,
            payloads=[bytes(content[start:stop]) for start, stop in spans],
            offsets=self._offset + offsets,
            first=self._number,
            is_compressed=self.is_compressed,
        )

    def _advance(self, num_records: int, num_bytes: int) -> None:
        self._number += num_records
        self._offset += num_bytes

    def _refuse_rest(self, rest: bytes | bytearray) -> NoReturn:
        """Raises UsageError for an incomplete record at the end."""
        if len(rest) < HEADER_BYTES:
            self._refuse(f"only {len(rest)} of its {HEADER_BYTES} header bytes exist")
        length = int.from_bytes(rest[:8], "little")
        self._refuse(f"it claims {length} bytes of data, beyond the end of the file")

    def _refuse(self, what: str) -> NoReturn:
        advice = "write or copy the file again"
        if self._number == 0:
            advice = "if it is a TFRecord file at all, write or copy it again"
        place = place_of(self._path, self._number, self._offset, self.is_compressed)
        raise UsageError(f"{place}: {what}: {advice}.")
