import contextlib
import gzip
import struct
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.common.errors import UsageError
from tests.markers import further
from tests.trainers.inputs.record_factory import read_records, write
from trainers.inputs.tfrecord import reader
from trainers.inputs.tfrecord.reader import FileSize, read_pieces, size_of


def payloads_of(path: Path) -> list[bytes]:
    return [payload for payload, _ in read_records(path)]


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        read_records(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def count_refusal(path: Path) -> str:
    """Returns the error of a count of records, which reads only their lengths."""
    with pytest.raises(UsageError) as raised:
        size_of(path)
    return str(raised.value)


def gzip_content(path: Path) -> bytes | None:
    """Returns the data of a compressed file by Python's reader; None if damaged."""
    with contextlib.suppress(OSError, EOFError, zlib.error):
        return gzip.decompress(path.read_bytes())
    return None


def compress(path: Path) -> Path:
    """Writes a compressed copy of a file; returns its path."""
    compressed = path.with_suffix(".gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    return compressed


def test_what_tensorflow_writes_is_read_back(tmp_path):
    payloads = [b"first", b"", b"x" * 1000, bytes(range(256)), b"last"]
    path = write(tmp_path / "a.tfrecord", payloads)
    offsets = np.cumsum([0, *(16 + len(payload) for payload in payloads[:-1])])
    assert read_records(path) == list(zip(payloads, offsets.tolist(), strict=True))
    (piece,) = read_pieces(path)
    assert piece.place(1) == f"{path}: record 1 at byte 21"


@given(payloads=st.lists(st.binary(max_size=70), min_size=1, max_size=40))
@settings(deadline=None, max_examples=50)
def test_any_payloads_are_read_back(tmp_path_factory, payloads):
    path = write(tmp_path_factory.getbasetemp() / "any.tfrecord", payloads)
    assert payloads_of(path) == payloads


@pytest.mark.parametrize("difference", [-1, 0, 1, *map(further, (-13, 13))])
def test_records_of_about_a_piece_are_read_back(tmp_path, difference):
    random = np.random.default_rng(0)
    piece = reader.PIECE_BYTES
    sizes = [piece - 16 + difference, 5, 2 * piece + difference, 0, piece // 2, 3]
    payloads = [random.bytes(size) for size in sizes]
    path = write(tmp_path / "across.tfrecord", payloads)
    offsets = np.cumsum([0, *(16 + size for size in sizes[:-1])])
    for file in (path, compress(path)):
        assert read_records(file) == list(zip(payloads, offsets.tolist(), strict=True))
        assert size_of(file).num_records == len(payloads)
        pieces = list(read_pieces(file))
        assert len(pieces) > 1
        firsts = np.cumsum([0, *(len(p.payloads) for p in pieces[:-1])])
        assert [p.first for p in pieces] == firsts.tolist()
        last = pieces[-1]
        stream = " of the uncompressed stream" if file != path else ""
        assert last.place(len(last.payloads) - 1) == (
            f"{file}: record 5 at byte {offsets[-1]}{stream}"
        )


# RFC 3720, appendix B.4, "CRC Examples".
@pytest.mark.parametrize(
    ("payload", "checksum"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
    ids=["zeros", "ones", "rising", "falling"],
)
def test_the_checksum_is_the_one_of_the_standard(tmp_path, payload, checksum):
    path = write(tmp_path / "a.tfrecord", [payload])
    content = path.read_bytes()
    rotated = checksum >> 15 | (checksum << 17) % 2**32
    masked = (rotated + 0xA282EAD8) % 2**32
    path.write_bytes(content[:-4] + struct.pack("<I", masked))
    assert payloads_of(path) == [payload]
    path.write_bytes(content[:-4] + struct.pack("<I", masked ^ 1))
    assert "record 0 at byte 0: its data is damaged" in refusal(path)


def checksum_of(data: bytes) -> int:
    """Byte by byte, as the standard has it, and masked."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    checksum = state ^ 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32


def test_a_file_cut_anywhere_is_refused_or_has_fewer_records(tmp_path):
    payloads = [b"one", b"", b"three and more"]
    path = write(tmp_path / "cut.tfrecord", payloads)
    content = path.read_bytes()
    boundaries = {19: 1, 35: 2}
    for size in range(len(content)):
        path.write_bytes(content[:size])
        if size in boundaries:
            assert payloads_of(path) == payloads[: boundaries[size]]
        else:
            refusal(path)


def test_every_flipped_bit_is_found_in_the_record_that_has_it(tmp_path):
    path = write(tmp_path / "flipped.tfrecord", [b"one", b"", b"three"])
    content = path.read_bytes()
    starts = [0, 19, 35]
    for place in range(len(content)):
        index = sum(place >= start for start in starts) - 1
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            where = f"record {index} at byte {starts[index]}"
            assert f"{where}: its " in refusal(path)
            assert f"{where} of the uncompressed stream: its " in refusal(
                compress(path)
            )


def header(length: int) -> bytes:
    """Returns a header that claims a length, with a right checksum."""
    length_bytes = struct.pack("<Q", length)
    return length_bytes + struct.pack("<I", checksum_of(length_bytes))


@pytest.mark.parametrize("length", [4, 2**31, 2**32 - 4, 2**40, 2**63, 2**64 - 1])
def test_a_length_beyond_the_end_is_refused(tmp_path, length):
    path = tmp_path / "huge.tfrecord"
    path.write_bytes(header(length) + b"abc")
    for refused in (refusal, count_refusal):
        assert f"record 0 at byte 0: it claims {length} bytes" in refused(path)
        assert f"of the uncompressed stream: it claims {length} bytes" in refused(
            compress(path)
        )


def test_a_length_beyond_the_end_is_refused_after_good_records(tmp_path):
    path = write(tmp_path / "huge.tfrecord", [b"good"])
    path.write_bytes(path.read_bytes() + header(2**40) + b"abc")
    assert f"record 1 at byte 20: it claims {2**40} bytes" in refusal(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "byte 0: the file is empty: write it again"),
        (b"abc", "record 0 at byte 0: only 3 of its 12 header bytes exist"),
        (bytes(64), "record 0 at byte 0: its length is damaged"),
        (b"sample,label\n1 2 3 4 5,0\n", "if it is a TFRecord file at all"),
        (b"\x1f\x8b\x08" + bytes(20), "the compressed data is damaged"),
        (gzip.compress(b""), "byte 0: the file is empty: write it again"),
        (gzip.compress(b"text"), "only 4 of its 12 header bytes exist"),
    ],
    ids=["empty", "short", "zeros", "text", "gzip", "empty gzip", "text in gzip"],
)
def test_what_is_not_a_record_file_is_refused(tmp_path, content, expected):
    path = tmp_path / "other.tfrecord"
    path.write_bytes(content)
    assert expected in refusal(path)


@given(payloads=st.lists(st.binary(max_size=70), min_size=1, max_size=40))
@settings(deadline=None, max_examples=30)
def test_counting_comes_to_what_reading_does(tmp_path_factory, payloads):
    path = write(tmp_path_factory.getbasetemp() / "counted.tfrecord", payloads)
    num_bytes = path.stat().st_size
    size = FileSize(num_records=len(payloads), num_bytes=num_bytes)
    assert size_of(path) == size_of(compress(path)) == size


def test_counting_looks_at_every_length(tmp_path):
    """Records of all kinds of lengths, so that blocks begin and end anywhere."""
    random = np.random.default_rng(0)
    sizes = [int(size) for size in random.integers(0, 40_000, 50)]
    path = write(tmp_path / "a.tfrecord", [random.bytes(size) for size in sizes])
    content = path.read_bytes()
    starts = np.cumsum([0, *(16 + size for size in sizes[:-1])])
    assert size_of(path).num_records == 50
    for index in (0, 1, 24, 49):
        damaged = bytearray(content)
        damaged[starts[index] + 2] ^= 1
        path.write_bytes(damaged)
        place = f"record {index} at byte {starts[index]}"
        assert f"{place}: its length is damaged" in count_refusal(path)
        assert f"{place} of the uncompressed stream: its length is damaged" in (
            count_refusal(compress(path))
        )


def test_counting_finds_a_cut_wherever_reading_does(tmp_path):
    path = write(tmp_path / "cut.tfrecord", [b"one", b"", b"three and more"])
    content = path.read_bytes()
    for size in range(1, len(content)):
        path.write_bytes(content[:size])
        if size in (19, 35):
            assert size_of(path).num_records == len(read_records(path))
        else:
            assert count_refusal(path) == refusal(path)


def test_a_compressed_file_that_is_cut_or_changed_is_refused(tmp_path):
    payloads = [bytes([value]) * 50 for value in range(200)]
    path = compress(write(tmp_path / "a.tfrecord", payloads))
    content = path.read_bytes()
    whole = gzip_content(path)
    for size in range(1, len(content), 7):
        path.write_bytes(content[:size])
        assert "of the uncompressed stream" in refusal(path) or size < 3
    # Not the time it was written at, nor the system it was written on.
    for place in range(10, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        # A few bits at the end of compressed data mean nothing.
        if gzip_content(path) != whole:
            assert "of the uncompressed stream" in refusal(path)


def test_what_decompresses_to_more_than_there_is_room_for_is_refused_early(tmp_path):
    """A gigabyte of zeros in a megabyte; no record begins with zeros."""
    path = tmp_path / "zeros.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(1 << 24))
    tracemalloc.start()
    assert "record 0 at byte 0 of the uncompressed stream: its length" in refusal(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # One piece at a time, and what looking at it takes.
    assert most < 16 * reader.PIECE_BYTES


def test_what_is_behind_a_length_beyond_the_end_is_not_read(tmp_path):
    path = tmp_path / "huge.tfrecord"
    with path.open("wb") as file:
        file.write(header(2**40))
        file.truncate(1 << 28)
    tracemalloc.start()
    assert f"it claims {2**40} bytes of data, beyond the end" in refusal(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 * reader.PIECE_BYTES


def test_a_length_that_looks_like_gzip_is_a_length(tmp_path):
    """A record of 559,903 bytes begins with the bytes 1f 8b 08."""
    path = write(tmp_path / "a.tfrecord", [bytes(0x088B1F)])
    assert path.read_bytes()[:3] == b"\x1f\x8b\x08"
    assert payloads_of(path) == [bytes(0x088B1F)]
    assert size_of(path).num_records == 1


def test_what_cannot_be_opened_is_refused(tmp_path):
    assert "cannot be read (Is a directory)" in refusal(tmp_path)
    missing = tmp_path / "missing.tfrecord"
    assert "cannot be read (No such file or directory)" in refusal(missing)


def test_a_hundred_thousand_records_take_about_a_second(tmp_path):
    path = write(tmp_path / "many.tfrecord", [b"x" * 60] * 100_000)
    start = time.perf_counter()
    records = read_records(path)
    seconds = time.perf_counter() - start
    assert len(records) == 100_000
    # It takes 0.2 s; the rest is for a machine that is busy with other tests.
    assert seconds < 3
