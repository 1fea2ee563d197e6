"""The published archive of CIFAR-10, downloaded once and read without unpacking.

The form of the archive is the binary one of https://www.cs.toronto.edu/~kriz/cifar.html:
`data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
"""

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from strategies.common.errors import UsageError
from strategies.common.native_log import native_log_hidden
from strategies.common.text import one_line, shown
from trainers.config.data import DataConfig

NUM_CLASSES = 10

_SIDE = 32
_IMAGE_BYTES = 3 * _SIDE * _SIDE
_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
_TEST = "test_batch.bin"
_NAMES = [*_TRAIN, _TEST]
# A published file has 31 MB. A small archive can claim any number of bytes.
_MOST_FILE_BYTES = 1 << 28
_BYTES_AT_A_TIME = 1 << 20

FILE_NAME = "cifar-10-binary.tar.gz"
ORIGIN = f"https://www.cs.toronto.edu/~kriz/{FILE_NAME}"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_ADVICE = f"give the published {FILE_NAME}, or the folder in it"


def fetch(config: DataConfig) -> None:
    """Downloads the archive if it is needed and not in Keras's cache.

    Raises:
      UsageError: The archive cannot be downloaded.
    """
    kept = _keras_home() / "datasets" / FILE_NAME
    if config.data_path is None and not _is_published(kept):
        downloaded()


def downloaded() -> Path:
    """Returns the path of the archive; downloads it if it is missing or damaged.

    Raises:
      UsageError: The archive cannot be downloaded.
    """
    with native_log_hidden():
        # Importing Keras takes seconds. A launcher that finds the file does not need
        # it.
        import keras
    try:
        path = keras.utils.get_file(
            FILE_NAME, origin=ORIGIN, file_hash=SHA256, cache_dir=str(_keras_home())
        )
    # Keras raises a plain Exception for errors of urllib.
    except Exception as error:
        raise UsageError(
            f"--dataset=cifar10 cannot be downloaded ({one_line(error)}): give "
            f"--data_path with the published {FILE_NAME}."
        ) from error
    return Path(path)


def _is_published(path: Path) -> bool:
    """Returns whether a file is the published archive, which has 170 MB."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    except OSError:
        return False


def _keras_home() -> Path:
    return Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()


# Pixels, uint8 [n, 32, 32, 3], and classes, int64 [n] from 0 to 9.
Images = tuple[np.ndarray, np.ndarray]


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
    missing = [name for name in _NAMES if name not in files]
    if missing:
        raise UsageError(
            f"--data_path={path} lacks {', '.join(missing)} of CIFAR-10: {_ADVICE}."
        )
    parts = {name: _images(f"{path}: {name}", files[name]) for name in _NAMES}
    pixels, labels = zip(*(parts[name] for name in _TRAIN), strict=True)
    return (np.concatenate(pixels), np.concatenate(labels)), parts[_TEST]


def _read_folder(folder: Path) -> Mapping[str, bytes]:
    """Returns the contents of the files in a folder, by name."""
    found = {}
    for path in (folder / name for name in _NAMES):
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
        # `tarfile` adds the error of each compression that it tries.
        reason = one_line(error).partition(": - method")[0]
        raise UsageError(
            f"--data_path={path} is no archive, or a damaged one ({reason}): {_ADVICE}."
        ) from error
    return found


def _read_members(path: Path, archive: tarfile.TarFile) -> Mapping[str, bytes]:
    found = {}
    for member in archive:
        _check_member(path, member)
        name = PurePosixPath(member.name).name
        # `extractfile` returns None for a folder with such a name.
        content = archive.extractfile(member) if name in _NAMES else None
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


def _images(place: str, content: bytes) -> Images:
    """Reads records of one byte with the class and 3,072 bytes with the image."""
    record_bytes = 1 + _IMAGE_BYTES
    if not content or len(content) % record_bytes:
        raise UsageError(
            f"{place} has {len(content):,} bytes, which is no number of records of "
            f"{record_bytes:,} bytes: {_ADVICE}."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_bytes)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= NUM_CLASSES:
        index = int(np.argmax(labels >= NUM_CLASSES))
        raise UsageError(
            f"{place}: image {index} is said to be of class {labels[index]}, and "
            f"classes are from 0 to {NUM_CLASSES - 1}: {_ADVICE}."
        )
    # Stored as [channel, row, column], red first; the model takes channels last.
    planes = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels
