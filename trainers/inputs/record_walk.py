"""Walking from record to record through a TFRecord file, piece by piece.

Nothing is sliced or allocated before its length is known to lie inside the file, and
both checksums of every record are compared.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from strategies.settings import UsageError
from trainers.inputs.crc32c import masked_checksums_match

HEADER_BYTES = 12
FOOTER_BYTES = 4

# Read at a time. A record that is longer is read in as many parts.
PIECE_BYTES = 1 << 22
# Read at a time where only lengths are looked at: between two of them there may be
# much that need not be read.
_BLOCK_BYTES = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The data of consecutive records of one file.

    Attributes:
      path: of the file.
      payloads: the data of each record, in file order.
      offsets: int64 [num_records], the byte at which each record begins.
      first: the number in the file of the first of them.
      is_compressed: whether bytes are those of the uncompressed stream.
    """

    path: Path
    payloads: list[bytes]
    offsets: np.ndarray
    first: int = 0
    is_compressed: bool = False

    def place(self, index: int) -> str:
        """Where a record is, in the words every error message begins with."""
        offset = int(self.offsets[index])
        return place_of(self.path, self.first + index, offset, self.is_compressed)


def place_of(path: Path, number: int, offset: int, is_compressed: bool) -> str:
    """Where a record is: its file, its number there, and the byte it begins at."""
    stream = " of the uncompressed stream" if is_compressed else ""
    return f"{path}: record {number} at byte {offset}{stream}"


def empty(path: Path) -> UsageError:
    """What to say of a file without records."""
    return UsageError(f"{path}: byte 0: the file is empty: write it again.")


class RecordWalk:
    """Where one is in a file."""

    def __init__(self, path: Path, is_compressed: bool, size: int | None):
        """Begins before the first record.

        Args:
          path: of the file, to be named in errors.
          is_compressed: whether what is read is what it decompresses to.
          size: of that in bytes; None if it is not known.
        """
        self._path = path
        self.is_compressed = is_compressed
        self._size = size
        # Of the record that comes next: its number, and the byte it begins at.
        self._number = 0
        self._offset = 0
        self._damage: Exception | None = None

    def count(self, stream: BinaryIO) -> int:
        """Passes over the data of all records."""
        size = stream.seek(0, io.SEEK_END)
        while self._offset < size:
            stream.seek(self._offset)
            block = stream.read(_BLOCK_BYTES)
            headers, end = self._headers(block)
            if not headers:
                self._refuse_rest(block)
            if self._offset + end > size:
                self._advance(len(headers) - 1, headers[-1])
                self._refuse_rest(block[headers[-1] :])
            self._advance(len(headers), end)
        return self._number

    def records(self, stream: BinaryIO, check_data: bool = True) -> Iterator[Records]:
        """All records, those of a few megabytes at a time."""
        content = bytearray()
        is_at_end = False
        while not is_at_end:
            is_at_end = self._read_on(stream, content)
            headers, end = self._headers(content)
            if end > len(content):
                end = headers.pop()
                self._check_fits(content, end, len(headers))
            if headers:
                yield self._take(content, headers, end, check_data)
                self._advance(len(headers), end)
                del content[:end]
        if self._damage is not None:
            reason = " ".join(str(self._damage).split())
            self._refuse(f"the compressed data is damaged ({reason})")
        if content:
            self._refuse_rest(content)
        if not self._number:
            raise empty(self._path)

    def _read_on(self, stream: BinaryIO, content: bytearray) -> bool:
        """Adds a piece to the content, and returns whether it was the last."""
        wanted = len(content) + PIECE_BYTES
        while len(content) < wanted:
            try:
                part = stream.read1(PIECE_BYTES)  # type: ignore[attr-defined]
            # What comes before the damage is looked at first.
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                part, self._damage = b"", error
            content += part
            if not part:
                return True
        return False

    def _headers(self, content: bytes | bytearray) -> tuple[list[int], int]:
        """Where records begin, and where the last of them ends or would end.

        Raises:
          UsageError: a length is damaged.
        """
        offset, headers = 0, []
        while offset + HEADER_BYTES <= len(content):
            headers.append(offset)
            length = int.from_bytes(content[offset : offset + 8], "little")
            offset += HEADER_BYTES + length + FOOTER_BYTES
        offsets = np.array(headers, dtype=np.int64)
        # Before anything is said about a length, it must be the one that was
        # written: the first damaged one led the loop above astray.
        intact = masked_checksums_match(content, offsets, offsets + 8)
        if not intact.all():
            index = int(np.argmin(intact))
            self._advance(index, headers[index])
            self._refuse("its length is damaged")
        return headers, offset

    def _check_fits(self, content: bytearray, start: int, number: int) -> None:
        """Refuses a length beyond the end at once, where the end is known."""
        length = int.from_bytes(content[start : start + 8], "little")
        end = self._offset + start + HEADER_BYTES + length + FOOTER_BYTES
        if self._size is not None and end > self._size:
            self._advance(number, start)
            self._refuse_rest(content[start:])

    def _take(
        self, content: bytearray, headers: list[int], end: int, check_data: bool
    ) -> Records:
        """Whole records at the beginning of the content.

        Raises:
          UsageError: the data of one of them is damaged.
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
        """What is left at the end is not a whole record."""
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
