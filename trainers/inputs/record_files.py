"""TFRecord files, read and checked without TensorFlow's reader.

TensorFlow's reader trusts a record's claimed length and can end the process on
a damaged file. Here nothing is sliced or allocated before its length is known to
lie inside the file, and both checksums of every record are compared.

A record is, in little-endian order: uint64 length, uint32 masked checksum of
those 8 bytes, `length` bytes of data, uint32 masked checksum of the data. The
checksum is crc32c, RFC 3720 appendix B.4; the mask is the one of TensorFlow's
tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from strategies.settings import UsageError

HEADER_BYTES = 12
FOOTER_BYTES = 4

# The crc32c polynomial 0x1EDC6F41 with its bits in reverse, as the
# algorithm that shifts to the right needs it.
_POLYNOMIAL = np.uint32(0x82F63B78)
_MASK_DELTA = np.uint32(0xA282EAD8)
_GZIP_MAGIC = b"\x1f\x8b"

# Bytes that are checked at a time: large enough to hide the cost of a numpy
# call, small enough for the temporary arrays to stay in the processor's cache.
_CHUNK_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The data of every record of one file.

    Attributes:
      path: of the file.
      payloads: the data of each record, in file order.
      offsets: int64 [num_records], the byte at which each record begins.
    """

    path: Path
    payloads: list[bytes]
    offsets: np.ndarray

    def place(self, index: int) -> str:
        """Where a record is, in the words every error message begins with."""
        return f"{self.path}: record {index} at byte {self.offsets[index]}"


def read_records(path: Path) -> Records:
    """Reads a whole file into memory and checks all of it.

    Raises:
      UsageError: the file cannot be read, is empty, is cut short or damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}): change its permissions or "
            "give another path."
        ) from error
    if not content:
        raise UsageError(f"{path}: byte 0: the file is empty: write it again.")
    offsets = _record_offsets(path, content)
    ends: np.ndarray = np.append(offsets[1:], len(content)) - FOOTER_BYTES
    _check_data(path, content, offsets, ends)
    starts: np.ndarray = offsets + HEADER_BYTES
    payloads = [
        content[start:end]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return Records(path=path, payloads=payloads, offsets=offsets)


def _record_offsets(path: Path, content: bytes) -> np.ndarray:
    """The byte at which each record begins: int64 [num_records].

    Raises:
      UsageError: a length is damaged, or reaches beyond the end of the file.
    """
    offset, headers = 0, []
    while offset + HEADER_BYTES <= len(content):
        headers.append(offset)
        length = int.from_bytes(content[offset : offset + 8], "little")
        offset += HEADER_BYTES + length + FOOTER_BYTES
    offsets = np.array(headers, dtype=np.int64)
    # Before anything is said about a length, it must be the one that was
    # written: the first damaged one led the loop above astray.
    intact = _checksums_match(content, offsets, offsets + 8)
    if not intact.all():
        index = int(np.argmin(intact))
        _refuse(path, content, index, headers[index], "its length is damaged")
    if offset > len(content):
        missing = f"it claims {length} bytes of data, beyond the end of the file"
        _refuse(path, content, len(headers) - 1, headers[-1], missing)
    if offset < len(content):
        rest = f"only {len(content) - offset} of its {HEADER_BYTES} header bytes exist"
        _refuse(path, content, len(headers), offset, rest)
    return offsets


def _check_data(
    path: Path, content: bytes, offsets: np.ndarray, ends: np.ndarray
) -> None:
    intact = _checksums_match(content, offsets + HEADER_BYTES, ends)
    if not intact.all():
        index = int(np.argmin(intact))
        _refuse(path, content, index, int(offsets[index]), "its data is damaged")


def _refuse(path: Path, content: bytes, index: int, offset: int, what: str) -> NoReturn:
    advice = "write or copy the file again"
    if content.startswith(_GZIP_MAGIC) and index == 0:
        advice = "it looks compressed, so decompress it with gunzip first"
    elif index == 0:
        advice = "if it is a TFRecord file at all, write or copy it again"
    raise UsageError(f"{path}: record {index} at byte {offset}: {what}: {advice}.")


def _checksums_match(
    content: bytes, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Whether spans of bytes agree with the masked checksum that follows each.

    Args:
      content: a whole file.
      starts: int64 [n], the first byte of each span.
      ends: int64 [n], one beyond the last; 4 more bytes are in the file.

    Returns:
      bool [n].
    """
    file_bytes = np.frombuffer(content, dtype=np.uint8)
    states: np.ndarray = np.full(len(starts), 0xFFFFFFFF, dtype=np.uint32)
    for chosen, first, last in _chunks(starts, ends):
        width = int((last - first).max())
        columns = last[:, None] + np.arange(-width, 0)
        rows = np.where(columns >= first[:, None], file_bytes[columns], 0)
        states[chosen] = _extend(states[chosen], rows.astype(np.uint8), last - first)
    checksums = ~states
    masked = ((checksums >> 15) | (checksums << 17)) + _MASK_DELTA
    stored = file_bytes[ends[:, None] + np.arange(4)].view("<u4")[:, 0]
    return masked == stored


def _chunks(
    starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Divides spans into chunks of similar lengths, and long ones into pieces.

    Yields:
      Indices of some spans, and the start and end of the piece of each. The
      pieces of one span come in the order they have in the file.
    """
    lengths = ends - starts
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        # Lengths rise, so that the last span of a chunk is its widest.
        at_most = 1 + _CHUNK_BYTES // max(1, int(lengths[order[begin]]))
        widths = np.maximum(lengths[order[begin : begin + at_most]], 1)
        areas = widths * np.arange(1, len(widths) + 1)
        count = max(1, int(np.searchsorted(areas, _CHUNK_BYTES, side="right")))
        chosen = order[begin : begin + count]
        begin += count
        for first in range(0, max(1, int(lengths[chosen[-1]])), _CHUNK_BYTES):
            piece_starts = starts[chosen] + first
            yield (
                chosen,
                piece_starts,
                np.minimum(piece_starts + _CHUNK_BYTES, ends[chosen]),
            )


def _extend(states: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Checksum states after more bytes, for many rows at once.

    A checksum without its initial and final inversion is linear over GF(2), so
    that state(AB) = shift(state(A), length of B) ^ state(B): neighbours are
    joined in a tree, and zeros in front of a row change nothing.

    Args:
      states: uint32 [n], before these bytes.
      rows: uint8 [n, width], the bytes, at the end of each row; zeros before.
      lengths: int64 [n], how many of each row count.

    Returns:
      uint32 [n].
    """
    sums = _shift_tables(0)[0][rows]
    for level in range(int(lengths.max()).bit_length()):
        tables = _shift_tables(level)
        is_set = (lengths >> level) & 1 == 1
        states = np.where(is_set, _shift(tables, states), states)
        if sums.shape[1] > 1:
            if sums.shape[1] % 2:
                sums = np.pad(sums, ((0, 0), (1, 0)))
            sums = _shift(tables, sums[:, 0::2]) ^ sums[:, 1::2]
    return states ^ sums[:, 0] if sums.shape[1] else states


@functools.cache
def _shift_tables(level: int) -> np.ndarray:
    """uint32 [4, 256]: what each byte of a state becomes 2**level bytes later."""
    if level > 0:
        half = _shift_tables(level - 1)
        return _shift(half, half)
    values: np.ndarray = np.arange(256, dtype=np.uint32)
    table = values
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1)
    return np.stack([table, values, values << 8, values << 16])


def _shift(tables: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Advances states by as many zero bytes as the tables stand for."""
    return (
        tables[0][states & 0xFF]
        ^ tables[1][(states >> 8) & 0xFF]
        ^ tables[2][(states >> 16) & 0xFF]
        ^ tables[3][states >> 24]
    )
