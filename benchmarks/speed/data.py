"""Data sets made for measurements, without downloads."""

from __future__ import annotations

import pathlib

import numpy as np
from sklearn.datasets import load_digits

from trainers.write_tfrecord import make_examples, write

_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def write_images(folder: pathlib.Path) -> None:
    """Writes the digits as images of 32x32x3, in the format of CIFAR-10."""
    digits = load_digits()
    pixels = (digits.images * 255 / 16).astype(np.uint8)
    enlarged = pixels.repeat(4, axis=1).repeat(4, axis=2)
    # Each image is its label, then its red, green and blue part.
    colours = np.repeat(enlarged[:, None], 3, axis=1).reshape(len(pixels), -1)
    records = np.column_stack([digits.target.astype(np.uint8), colours])
    for name, part in zip(_FILES, np.array_split(records, len(_FILES)), strict=True):
        (folder / name).write_bytes(part.tobytes())


def write_records(folder: pathlib.Path) -> None:
    """Writes records in the format of the TensorFlow 1 tutorials."""
    write(folder / "train.tfrecord", *make_examples(20_000, seed=0))
