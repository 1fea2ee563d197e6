"""Files of a stream, whose lengths have been checked."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from strategies.common.errors import UsageError
from trainers.inputs.tfrecord.framing import is_compressed
from trainers.inputs.tfrecord.reader import FileSize, size_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamFile:
    """File whose lengths have been checked.

    Attributes:
      path: Path of the file.
      size: Number of records, and of their bytes.
      version: Size in bytes and time of the last change.
      compression: Compression type as `tf.data.TFRecordDataset` names it.
    """

    path: Path
    size: FileSize
    version: tuple[int, int]
    compression: str

    @classmethod
    def open(cls, path: Path) -> StreamFile:
        """Counts the records of a file.

        Raises:
          UsageError: The file cannot be read, is empty, truncated, or a length is
            damaged.
        """
        # Before the lengths: a change while they are read must not be missed.
        version = _version_of(path)
        return cls(
            path=path,
            size=size_of(path),
            version=version,
            compression="GZIP" if is_compressed(path) else "",
        )

    def unchanged_path(self) -> bytes:
        """Returns the path.

        TensorFlow's reader can end the process on an untrue length, and steps and
        epochs follow from the number of records.

        Raises:
          UsageError: The file has changed since its lengths were checked.
        """
        if _version_of(self.path) != self.version:
            raise UsageError(
                f"{self.path}: has changed since it was opened: leave files alone "
                "while they are trained on."
            )
        return os.fsencode(self.path)


def _version_of(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read any more ({error.strerror}): leave files alone "
            "while they are trained on."
        ) from error
    return status.st_size, status.st_mtime_ns
