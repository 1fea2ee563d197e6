"""crc32c checksums of many spans of bytes at once, with NumPy alone.

The checksum is that of RFC 3720, appendix B.4. TFRecord files store it masked, as
tensorflow/core/lib/hash/crc32c.h in TensorFlow has it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

# The crc32c polynomial 0x1EDC6F41 with its bits in reverse, as the
# algorithm that shifts to the right needs it.
_POLYNOMIAL = np.uint32(0x82F63B78)
_MASK_DELTA = np.uint32(0xA282EAD8)

# Bytes that are checked at a time: large enough to hide the cost of a numpy
# call, small enough for the temporary arrays to stay in the processor's cache.
CHUNK_BYTES = 1 << 20
# Of a long row, what is worked through one word after the other. A power of two.
_BLOCK_BYTES = 256


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
    # Zeros in front change nothing, and let spans of a chunk be rows of one width.
    margin = min(CHUNK_BYTES, int((ends - starts).max(initial=1)))
    padded = np.concatenate([np.zeros(margin, np.uint8), file_bytes])
    states: np.ndarray = np.full(len(starts), 0xFFFFFFFF, dtype=np.uint32)
    for chosen, first, last in _chunks(starts, ends):
        lengths = last - first
        width = max(1, int(lengths.max()))
        rows = sliding_window_view(padded, width)[margin + last - width]
        if int(lengths.min()) < width:
            rows[np.arange(width) < (width - lengths)[:, None]] = 0
        states[chosen] = _extend(states[chosen], rows, lengths)
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
    for level in range(int(lengths.max()).bit_length()):
        is_set = (lengths >> level) & 1 == 1
        states = np.where(is_set, _shift(_shift_tables(level), states), states)
    return states ^ _states_of(rows)


def _states_of(rows: np.ndarray) -> np.ndarray:
    """The state that each row alone leaves, begun from zero.

    Rows are cut into blocks, all of which advance by four bytes at a time, side by
    side; then neighbours are joined.

    Args:
      rows: uint8 [n, width], at least one byte wide.

    Returns:
      uint32 [n].
    """
    num_rows, width = rows.shape
    block_bytes = min(_BLOCK_BYTES, -(-width // 4) * 4)
    num_blocks = -(-width // block_bytes)
    whole = np.zeros([num_rows, num_blocks * block_bytes], np.uint8)
    whole[:, whole.shape[1] - width :] = rows
    words = whole.view("<u4").reshape(-1, block_bytes // 4)
    low, high = _word_tables()
    states: np.ndarray = np.zeros(len(words), np.uint32)
    for word in np.ascontiguousarray(words.T):
        states ^= word
        states = low[states & 0xFFFF] ^ high[states >> 16]
    sums = states.reshape(num_rows, num_blocks)
    level = _BLOCK_BYTES.bit_length() - 1
    while sums.shape[1] > 1:
        if sums.shape[1] % 2:
            sums = np.pad(sums, ((0, 0), (1, 0)))
        sums = _shift(_shift_tables(level), sums[:, 0::2]) ^ sums[:, 1::2]
        level += 1
    return sums[:, 0]


@functools.cache
def _word_tables() -> tuple[np.ndarray, np.ndarray]:
    """uint32 [65536] each: what halves of a state become four bytes later."""
    halves: np.ndarray = np.arange(1 << 16, dtype=np.uint32)
    tables = _shift_tables(2)
    return _shift(tables, halves), _shift(tables, halves << 16)


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
