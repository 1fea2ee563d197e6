"""TFRecord files, read and checked without TensorFlow's reader.

TensorFlow's reader trusts the length in a record's header and can end the process on a
damaged file. This reader reads and allocates only after a length has been checked, and
names the file, the record and the byte of any damage.

The file may be compressed by gzip; then errors give byte offsets in the decompressed
data.
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

from strategies.common.errors import UsageError
from strategies.common.text import one_line
from trainers.inputs.tfrecord.framing import (
    CHECKSUM,
    EXTRA_BYTES,
    HEADER_BYTES,
    LENGTH,
    has_checksum,
    is_compressed,
    masked_crc32c,
)

# Limits of a piece: records are checked and parsed together.
PIECE_RECORDS = 1024
PIECE_BYTES = 1 << 22
# Bytes read at a time to find headers: the data between two of them may be large and
# need not be read.
_BUFFER_BYTES = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """Data of consecutive records of one file.

    Attributes:
      path: Path of the file.
      payloads: Data of each record, in file order.
      offsets: Byte at which each record begins.
      first: Number in the file of the first of these records.
      is_compressed: True if offsets count bytes of the uncompressed stream.
    """

    path: Path
    payloads: list[bytes]
    offsets: list[int]
    first: int
    is_compressed: bool

    def place(self, index: int) -> str:
        """Returns the place of a record, in the words that begin an error message."""
        number = self.first + index
        return place_of(self.path, number, self.offsets[index], self.is_compressed)


def read_pieces(path: Path) -> Iterator[Records]:
    """Yields the records of a file, some megabytes at a time, each of them checked.

    Raises:
      UsageError: The file cannot be read, is empty, truncated or damaged; raised once
        reading has reached the damage.
    """
    with _opened(path) as walk:
        while payloads_and_offsets := walk.take_piece():
            payloads, offsets = zip(*payloads_and_offsets, strict=True)
            yield Records(
                path=path,
                payloads=list(payloads),
                offsets=list(offsets),
                first=walk.number - len(payloads),
                is_compressed=walk.is_compressed,
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FileSize:
    """Size of a file of records.

    Attributes:
      num_records: Number of records.
      num_bytes: Bytes of all records and of the frames around them, decompressed.
    """

    num_records: int
    num_bytes: int


def size_of(path: Path) -> FileSize:
    """Returns the size of a file of records, by the lengths of records only.

    It checks every length, and that the last record ends at the end of the file. It
    does not check data; in an uncompressed file it does not even read data.

    Raises:
      UsageError: The file cannot be read, is empty, truncated, or a length is damaged.
    """
    with _opened(path) as walk:
        while walk.skip():
            pass
        return FileSize(num_records=walk.number, num_bytes=walk.offset)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[RecordWalk]:
    """Opens a file, decompressed if necessary, with a walk at its first record."""
    try:
        with contextlib.ExitStack() as files:
            file = files.enter_context(path.open("rb", _BUFFER_BYTES))
            if is_compressed(path):
                stream = files.enter_context(gzip.open(file))
                yield RecordWalk(path, stream, size=None)  # type: ignore[arg-type]
            else:
                size = os.fstat(file.fileno()).st_size
                yield RecordWalk(path, file, size=size)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}): change its permissions or "
            "give another path."
        ) from error


class RecordWalk:
    """Position in a file, moved record by record.

    Attributes:
      number: Number of records before the position.
      offset: First byte of the next record.
      is_compressed: True if the file is decompressed while it is read.
    """

    def __init__(self, path: Path, stream: BinaryIO, size: int | None):
        """Starts before the first record.

        Args:
          path: Path of the file, named in errors.
          stream: Content of the file, decompressed.
          size: Bytes in the stream; None if it is decompressed while it is read.
        """
        self._path = path
        self._stream = stream
        self._size = size
        self.number = 0
        self.offset = 0
        self.is_compressed = size is None

    def take_piece(self) -> list[tuple[bytes, int]]:
        """Returns data and first byte of the next records; none at the end."""
        taken: list[tuple[bytes, int]] = []
        num_bytes = 0
        while len(taken) < PIECE_RECORDS and num_bytes < PIECE_BYTES:
            length = self._next_length()
            if length is None:
                break
            data, checksum = self._read(length), self._read(CHECKSUM.size)
            self._check_complete(length, checksum)
            if masked_crc32c(data) != checksum:
                self._fail("its data is damaged")
            taken.append((data, self.offset))
            num_bytes += length
            self._advance(length)
        return taken

    def skip(self) -> bool:
        """Moves beyond the next record without checking its data.

        Returns:
          False at the end of the file.
        """
        length = self._next_length()
        if length is None:
            return False
        if self.is_compressed:
            self._read(length)
            self._check_complete(length, self._read(CHECKSUM.size))
        else:
            self._stream.seek(length + CHECKSUM.size, io.SEEK_CUR)
        self._advance(length)
        return True

    def _next_length(self) -> int | None:
        """Reads and checks a header; None at the end of the file."""
        header = self._read(HEADER_BYTES)
        if not header and self.number:
            return None
        if not header:
            raise UsageError(
                f"{self._path}: byte 0: the file is empty: write it again."
            )
        if len(header) < HEADER_BYTES:
            self._fail(f"only {len(header)} of its {HEADER_BYTES} header bytes exist")
        if not has_checksum(header):
            self._fail("its length is damaged")
        (length,) = LENGTH.unpack_from(header)
        if self._size is not None and self.offset + EXTRA_BYTES + length > self._size:
            self._check_complete(length, b"")
        return int(length)

    def _read(self, num_bytes: int) -> bytes:
        """Reads some bytes, or fewer at the end."""
        parts: list[bytes] = []
        while num_bytes > 0:
            # In parts, because a length may promise more than fits into memory.
            try:
                part = self._stream.read(min(num_bytes, PIECE_BYTES))
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                self._fail(f"the compressed data is damaged ({one_line(error)})")
            if not part:
                break
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)

    def _check_complete(self, length: int, checksum: bytes) -> None:
        """Raises UsageError unless the last bytes of a record were there to read."""
        if len(checksum) < CHECKSUM.size:
            self._fail(f"it claims {length} bytes of data, beyond the end of the file")

    def _advance(self, length: int) -> None:
        self.number += 1
        self.offset += EXTRA_BYTES + length

    def _fail(self, problem: str) -> NoReturn:
        advice = "write or copy the file again"
        if self.number == 0:
            advice = "if it is a TFRecord file at all, write or copy it again"
        place = place_of(self._path, self.number, self.offset, self.is_compressed)
        raise UsageError(f"{place}: {problem}: {advice}.")


def place_of(path: Path, number: int, offset: int, is_compressed: bool) -> str:
    """Returns the place of a record: its file, its number there, and its first byte."""
    stream = " of the uncompressed stream" if is_compressed else ""
    return f"{path}: record {number} at byte {offset}{stream}"
