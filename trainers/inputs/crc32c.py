"""crc32c checksums of many spans of bytes at once, with NumPy alone.

The checksum is that of RFC 3720, appendix B.4. TFRecord files store it masked, as
tensorflow/core/lib/hash/crc32c.h in TensorFlow has it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

# The crc32c polynomial 0x1EDC6F41 with its bits in reverse, as the
# algorithm that shifts to the right needs it.
_POLYNOMIAL = np.uint32(0x82F63B78)
_MASK_DELTA = np.uint32(0xA282EAD8)

# Bytes that are checked at a time: large enough to hide the cost of a numpy
# call, small enough for the temporary arrays to stay in the processor's cache.
CHUNK_BYTES = 1 << 18


def masked_checksums_match(
    content: bytes | bytearray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Whether spans of bytes agree with the masked checksum that follows each.

    Args:
      content: of a file, or a part of it.
      starts: int64 [n], the first byte of each span.
      ends: int64 [n], one beyond the last; 4 more bytes follow.

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
        at_most = 1 + CHUNK_BYTES // max(1, int(lengths[order[begin]]))
        widths = np.maximum(lengths[order[begin : begin + at_most]], 1)
        areas = widths * np.arange(1, len(widths) + 1)
        count = max(1, int(np.searchsorted(areas, CHUNK_BYTES, side="right")))
        chosen = order[begin : begin + count]
        begin += count
        for first in range(0, max(1, int(lengths[chosen[-1]])), CHUNK_BYTES):
            piece_starts = starts[chosen] + first
            yield (
                chosen,
                piece_starts,
                np.minimum(piece_starts + CHUNK_BYTES, ends[chosen]),
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
