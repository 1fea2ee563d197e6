"""Small TFRecord files whose examples all differ."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from trainers.inputs.tfrecord.reader import read_pieces


def number(value: int, label: int = 0) -> bytes:
    """Returns a serialized Example of the default schema: a number five times."""
    example = tf.train.Example()
    example.features.feature["sample"].int64_list.value.extend([value] * 5)
    example.features.feature["label"].int64_list.value.append(label)
    return example.SerializeToString()


def write(path: Path, payloads: Sequence[bytes]) -> Path:
    """Writes a file of records, compressed if its name ends in .gz."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def read_records(path: Path) -> list[tuple[bytes, int]]:
    """Returns the data of each record of a file, and the record's first byte."""
    return [
        record
        for piece in read_pieces(path)
        for record in zip(piece.payloads, piece.offsets, strict=True)
    ]


def write_folder(folder: Path, sizes: Sequence[int]) -> Path:
    """Writes files of these sizes, examples numbered; compresses every other file."""
    folder.mkdir()
    first = 0
    for index, size in enumerate(sizes):
        suffix = ".gz" if index % 2 else ""
        payloads = [number(value, value % 2) for value in range(first, first + size)]
        write(folder / f"part-{index}.tfrecord{suffix}", payloads)
        first += size
    return folder


def damage_data(path: Path, record: int) -> int:
    """Changes a byte of a record's data, and returns where the record begins."""
    _, offset = read_records(path)[record]
    content = bytearray(path.read_bytes())
    content[offset + 14] ^= 1
    path.write_bytes(content)
    return offset
