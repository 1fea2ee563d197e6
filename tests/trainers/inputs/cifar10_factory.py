"""Small files in the forms in which CIFAR-10 is published."""

from __future__ import annotations

import io
import pathlib
import struct
import tarfile

import numpy as np

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
IMAGES_PER_FILE = 4


def images_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [n, 32, 32, 3] and labels int64 [n], others in every file."""
    random = np.random.default_rng(NAMES.index(name))
    pixels = random.integers(0, 256, (IMAGES_PER_FILE, 32, 32, 3), dtype=np.uint8)
    return pixels, random.integers(0, 10, IMAGES_PER_FILE)


def training_images() -> tuple[np.ndarray, np.ndarray]:
    """Of all training files, in their order."""
    pixels, labels = zip(*(images_of(name) for name in NAMES[:-1]), strict=True)
    return np.concatenate(pixels), np.concatenate(labels)


def binary(name: str) -> bytes:
    """A byte with the class, then the red, green and blue plane of each image."""
    pixels, labels = images_of(name)
    rows = [
        bytes([label]) + image.transpose(2, 0, 1).tobytes()
        for image, label in zip(pixels, labels, strict=True)
    ]
    return b"".join(rows)


def python(name: str) -> bytes:
    """As cPickle of Python 2 wrote it, with protocol 2. Python 3 has no way to."""
    pixels, labels = images_of(name)
    rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    items = [
        _text(b"data") + array_of_python_2(rows),
        _text(b"labels") + b"](" + b"".join(map(_number, labels.tolist())) + b"e",
        _text(b"batch_label") + _text(f"made {name}".encode()),
    ]
    return b"\x80\x02}(" + b"".join(items) + b"u."


def array_of_python_2(rows: np.ndarray, kind: bytes = b"u1") -> bytes:
    """What NumPy's arrays pickle themselves as, without the frame of a pickle."""
    made = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + (_number(0) + b"\x85" + _text(b"b"))
        + b"\x87R"
    )
    dtype = (
        b"cnumpy\ndtype\n"
        + (_text(kind) + _number(0) + _number(1) + b"\x87R")
        + (b"(" + _number(3) + _text(b"|") + b"NNN")
        + (_number(-1) + _number(-1) + _number(0) + b"tb")
    )
    shape = b"(" + b"".join(map(_number, rows.shape)) + b"t"
    state = b"(" + _number(1) + shape + dtype + b"\x89" + _text(rows.tobytes()) + b"t"
    return made + state + b"b"


def write_folder(folder: pathlib.Path, kind: str) -> pathlib.Path:
    """The files of one kind, as the published archive unpacks to."""
    folder.mkdir()
    for name, content in files_of(kind).items():
        (folder / name).write_bytes(content)
    (folder / "batches.meta").write_text("not read")
    return folder


def write_archive(
    path: pathlib.Path, kind: str, *more: tarfile.TarInfo
) -> pathlib.Path:
    """The same as an archive, with further members at its end."""
    with tarfile.open(path, "w:gz") as archive:
        inner = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}
        folder = tarfile.TarInfo(inner[kind])
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files_of(kind).items():
            member = tarfile.TarInfo(f"{inner[kind]}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def files_of(kind: str) -> dict[str, bytes]:
    """Contents by name."""
    if kind == "binary":
        return {f"{name}.bin": binary(name) for name in NAMES}
    return {name: python(name) for name in NAMES}


def _text(text: bytes) -> bytes:
    if len(text) < 256:
        return b"U" + bytes([len(text)]) + text
    return b"T" + struct.pack("<i", len(text)) + text


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)
