"""Small TFRecord files whose examples can be told from each other."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from trainers.inputs.tfrecord.reader import read_pieces


def number(value: int, label: int = 0) -> bytes:
    """A serialized Example of the default schema, five times the same number."""
    example = tf.train.Example()
    example.features.feature["sample"].int64_list.value.extend([value] * 5)
    example.features.feature["label"].int64_list.value.append(label)
    return example.SerializeToString()


def write(path: Path, payloads: Sequence[bytes]) -> Path:
    """A file of records; one that is called *.gz is compressed."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def read_records(path: Path) -> list[tuple[bytes, int]]:
    """The data of each record of a file, and the byte at which the record begins."""
    return [
        record
        for piece in read_pieces(path)
        for record in zip(piece.payloads, piece.offsets, strict=True)
    ]


def write_folder(folder: Path, sizes: Sequence[int]) -> Path:
    """Files of so many examples, numbered through; every other file is compressed."""
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
