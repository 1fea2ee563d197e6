"""Framing of records in a TFRecord file.

A record is, in little-endian order: uint64 length, uint32 masked checksum of those 8
bytes, `length` bytes of data, uint32 masked checksum of the data. The file may be
compressed by gzip (tensorflow/core/lib/io/record_writer.h).
"""

import struct
from pathlib import Path

import google_crc32c

_GZIP_MAGIC = b"\x1f\x8b"
_MASK_DELTA = 0xA282EAD8
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = LENGTH.size + CHECKSUM.size
# Bytes of a record beside its data.
EXTRA_BYTES = HEADER_BYTES + CHECKSUM.size


def is_compressed(path: Path) -> bool:
    """Returns whether a file is compressed by gzip, and not a record that looks so.

    Raises:
      OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    # A record with a length that looks like gzip's magic number has a valid checksum.
    return header.startswith(_GZIP_MAGIC) and not has_checksum(header)


def has_checksum(header: bytes) -> bool:
    """Returns whether a header is complete and its checksum is that of its length."""
    length, checksum = header[: LENGTH.size], header[LENGTH.size :]
    return len(header) == HEADER_BYTES and masked_crc32c(length) == checksum


def masked_crc32c(data: bytes) -> bytes:
    """Returns the stored form of a checksum: tensorflow/core/lib/hash/crc32c.h."""
    crc = google_crc32c.value(data)
    rotated = (crc >> 15) | (crc << 17)
    return CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)
