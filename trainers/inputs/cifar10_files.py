"""The published files of CIFAR-10, read without unpacking or execution.

There are two forms, each as a folder or as the published archive
(https://www.cs.toronto.edu/~kriz/cifar.html): `data_batch_1.bin` to `data_batch_5.bin`
and `test_batch.bin`, and the same names without `.bin`, which are pickles of Python 2.
"""

from __future__ import annotations

import dataclasses
import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from strategies.common.errors import UsageError
from strategies.common.text import shown
from trainers.inputs.cifar10_pickles import read_pickle

NUM_CLASSES = 10

_SIDE = 32
_IMAGE_BYTES = 3 * _SIDE * _SIDE
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_TEST = "test_batch"
_NAMES = [*_TRAIN, _TEST]
_BINARY = ".bin"
# A published file has 31 MB. A small archive can claim any number of bytes.
_MOST_FILE_BYTES = 1 << 28
_BYTES_AT_A_TIME = 1 << 20

_ADVICE = (
    "give the published cifar-10-binary.tar.gz or cifar-10-python.tar.gz, or the "
    "folder in it"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Images with their classes.

    Attributes:
      pixels: Pixels, uint8 [n, 32, 32, 3].
      labels: Classes, int64 [n] from 0 to 9.
    """

    pixels: np.ndarray
    labels: np.ndarray


def read_images(path: Path) -> tuple[Images, Images]:
    """Returns the training and the test images of a folder or an archive.

    Raises:
      UsageError: The path is neither a folder nor an archive, a file is missing or
        damaged, or the archive has members that would leave the folder it is unpacked
        into.
    """
    try:
        files = _read_folder(path) if path.is_dir() else _read_archive(path)
    except OSError as error:
        raise UsageError(
            f"--data_path={path} cannot be read ({error.strerror or error}): {_ADVICE}."
        ) from error
    # The test file decides which of the two forms is read.
    suffix = _BINARY if _TEST + _BINARY in files else ""
    missing = [name + suffix for name in _NAMES if name + suffix not in files]
    if missing:
        raise UsageError(
            f"--data_path={path} lacks {', '.join(missing)} of CIFAR-10: {_ADVICE}."
        )
    read = _read_binary if suffix else _read_python
    parts = {n: read(f"{path}: {n}{suffix}", files[n + suffix]) for n in _NAMES}
    train = Images(
        pixels=np.concatenate([parts[name].pixels for name in _TRAIN]),
        labels=np.concatenate([parts[name].labels for name in _TRAIN]),
    )
    return train, parts[_TEST]


def _read_folder(folder: Path) -> Mapping[str, bytes]:
    """Returns the contents of the files in a folder, by name."""
    found = {}
    for path in (folder / (n + suffix) for suffix in ("", _BINARY) for n in _NAMES):
        if path.is_file():
            _check_size(str(path), path.stat().st_size)
            found[path.name] = path.read_bytes()
    return found


def _read_archive(path: Path) -> Mapping[str, bytes]:
    """Returns the contents of the files in an archive, after checking every member."""
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"--data_path={path} {problem}: {_ADVICE}.")
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream) as archive:
                found = _read_members(path, archive)
            # `tarfile` stops at the end of the archive, before gzip's checksum.
            while stream.read(_BYTES_AT_A_TIME):
                pass
    # Each layer reports a truncated or damaged file in another way.
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--data_path={path} is no archive, or a damaged one ({reason}): {_ADVICE}."
        ) from error
    return found


def _read_members(path: Path, archive: tarfile.TarFile) -> Mapping[str, bytes]:
    wanted = {name + suffix for suffix in ("", _BINARY) for name in _NAMES}
    found = {}
    for member in archive:
        _check_member(path, member)
        name = PurePosixPath(member.name).name
        # `extractfile` returns None for a folder with such a name.
        content = archive.extractfile(member) if name in wanted else None
        if content is not None:
            _check_size(f"{path}: {shown(member.name)}", member.size)
            # The size is checked before anything is read.
            found[name] = content.read()
    return found


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    """Checks that a member stays in its folder if a user unpacks the archive by hand.

    Raises:
      UsageError: A path leaves the folder, or the member is neither a file nor a
        folder.
    """
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        problem = "whose path leaves the folder"
    elif not (member.isfile() or member.isdir()):
        problem = "which is a link or a device"
    else:
        return
    raise UsageError(
        f"--data_path={path} holds {shown(member.name)!r}, {problem}: do not unpack "
        f"it; {_ADVICE}."
    )


def _check_size(place: str, size: int) -> None:
    if size > _MOST_FILE_BYTES:
        raise UsageError(
            f"{place} has {size:,} bytes, and a file of CIFAR-10 at most "
            f"{_MOST_FILE_BYTES:,}: {_ADVICE}."
        )


def _read_binary(place: str, content: bytes) -> Images:
    """Reads records of one byte with the class and 3,072 bytes with the image."""
    record_bytes = 1 + _IMAGE_BYTES
    if not content or len(content) % record_bytes:
        raise UsageError(
            f"{place} has {len(content):,} bytes, which is no number of records of "
            f"{record_bytes:,} bytes: {_ADVICE}."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_bytes)
    return _images(place, records[:, 1:], records[:, 0])


def _read_python(place: str, content: bytes) -> Images:
    """Reads a dictionary with the images in a matrix and the classes in a list."""
    stored = read_pickle(place, content)
    pixels, labels = stored.get(b"data"), stored.get(b"labels")
    if (
        not isinstance(pixels, np.ndarray)
        or not isinstance(labels, list)
        or any(type(label) is not int for label in labels)
        or pixels.shape != (len(labels), _IMAGE_BYTES)
        or not labels
    ):
        raise UsageError(
            f"{place} does not hold as many labels as images of {_IMAGE_BYTES:,} "
            f"bytes, at least one: {_ADVICE}."
        )
    return _images(place, pixels, np.array(labels, object))


def _images(place: str, rows: np.ndarray, labels: np.ndarray) -> Images:
    """Checks labels, and moves channels from the first to the last axis."""
    is_class = (labels >= 0) & (labels < NUM_CLASSES)
    if not is_class.all():
        index = int(np.argmin(is_class))
        raise UsageError(
            f"{place}: image {index} is said to be of class {shown(int(labels[index]))}"
            f", and classes are from 0 to {NUM_CLASSES - 1}: {_ADVICE}."
        )
    # Stored as [channel, row, column], red first; the model takes channels last.
    planes = rows.reshape(-1, 3, _SIDE, _SIDE)
    return Images(
        pixels=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        labels=labels.astype(np.int64),
    )
