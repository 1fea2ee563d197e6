"""TFRecord files as a stream, never all held in memory.

The order of records depends on the seed, the files and how often they were read before.
Files are shuffled, a few of them are read in turn, and a buffer of their records is
shuffled.

A stream has no random access. It is read from the beginning of the epoch, or of the
pass over a process's files. Records before the first step are skipped without being
parsed, so that a resumed run sees the same records as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorflow as tf

from strategies.common import hashing
from strategies.common.errors import UsageError
from trainers.config.data import DataConfig
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import StreamedSource
from trainers.inputs.tfrecord.framing import is_compressed
from trainers.inputs.tfrecord.reader import FileSize, size_of
from trainers.inputs.tfrecord.schema import RecordSchema
from trainers.inputs.tfrecord.stream_batches import StreamBatches

# Both numbers are part of the order of records. More files at a time mix records
# better, and each holds some megabytes.
_FILES_AT_A_TIME = 8
_RECORDS_OF_A_TURN = 16
# Bounds of the default. With a buffer of 860 MB, 8,000 records, reading took 1.4 times
# as long as with one of 128 MiB (docs/performance_history.md).
_SHUFFLE_BUFFER_EXAMPLES = 10_000
_SHUFFLE_BUFFER_BYTES = 128 << 20
# Separates these random numbers from others with the key (seed, epoch).
_PURPOSE = 0x73687566666C65


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


def open_stream(
    files: Sequence[Path], schema: RecordSchema, config: DataConfig
) -> RecordStream:
    """Counts the records of all files by their lengths, which are checked.

    All processes have to give the files in the same order.

    Raises:
      UsageError: A file cannot be read, is empty, truncated, or a length is damaged.
    """
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        opened = tuple(threads.map(StreamFile.open, files))
    default = _default_shuffle_buffer([file.size for file in opened])
    return RecordStream(
        files=opened,
        schema=schema,
        num_classes=config.num_classes,
        by_file=config.sharding == "file",
        shuffle_buffer_examples=config.shuffle_buffer_examples or default,
    )


def _default_shuffle_buffer(sizes: Sequence[FileSize]) -> int:
    """Returns a number of examples that have 128 MiB, the same for every process."""
    num_bytes = sum(size.num_bytes for size in sizes)
    fitting = _SHUFFLE_BUFFER_BYTES * sum(s.num_records for s in sizes) // num_bytes
    return min(max(fitting, 1), _SHUFFLE_BUFFER_EXAMPLES)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RecordStream(StreamedSource):
    """Examples of TFRecord files, read one after the other.

    Attributes:
      files: All files.
      schema: Schema of the records.
      num_classes: Upper bound of labels, not included.
      by_file: True if each process reads different files; False if every process reads
        all files and takes its shard of each global batch.
      shuffle_buffer_examples: Number of examples in the shuffle buffer.
    """

    files: tuple[StreamFile, ...]
    schema: RecordSchema
    num_classes: int
    by_file: bool
    shuffle_buffer_examples: int

    @property
    def num_examples(self) -> int:
        return sum(file.size.num_records for file in self.files)

    def few(self, count: int) -> NoReturn:
        raise TypeError("examples are taken from those to evaluate on")

    def batches(self, order: Order, first_step: int, last_step: int) -> StreamBatches:
        return StreamBatches(
            stream=self, order=order, first_step=first_step, last_step=last_step
        )

    def records(
        self, chosen: Sequence[int], seed: int | None, time: tf.Tensor
    ) -> tf.data.Dataset:
        """Returns each record of some files once; called in a function of a pipeline.

        Args:
          chosen: Indices of the files.
          seed: Seed of the order; None for the order of the files.
          time: Number of times that these files were read before, int64 scalar.

        Returns:
          Scalars (index in the data set, data).
        """
        order = Order(
            num_examples=len(chosen), global_batch_size=len(chosen), seed=seed
        )
        # One "step" of this order visits all files: its number is the epoch.
        places, _, _ = order.indices(time, 0, 1)
        files = tf.gather(tf.constant(list(chosen), tf.int64), places)
        # Several threads do not read a single file faster; their hand-over took two of
        # five microseconds per record.
        at_once = tf.data.AUTOTUNE if len(chosen) > 1 else None
        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            self._records_of_file,
            cycle_length=min(_FILES_AT_A_TIME, len(chosen)),
            block_length=_RECORDS_OF_A_TURN,
            num_parallel_calls=at_once,
            deterministic=None if at_once is None else True,
        )
        if seed is None:
            return records
        key = tf.bitcast(hashing.key_of(seed, _PURPOSE, time), tf.int64)
        # `shuffle` mixes its seed with the graph's. Here that is the graph of the
        # pipeline's function, not of the process. With a graph seed of zero, TensorFlow
        # would test whether the seed of `shuffle` is zero too, which fails for a
        # tensor.
        tf.random.set_seed(1)
        return records.shuffle(
            self.shuffle_buffer_examples, seed=key, reshuffle_each_iteration=False
        )

    def _records_of_file(self, file: tf.Tensor) -> tf.data.Dataset:
        """Returns (index in the data set, data) of each record of a file."""
        path = tf.numpy_function(
            lambda index: self.files[index].unchanged_path(), [file], tf.string
        )
        compression = tf.gather([file.compression for file in self.files], file)
        records = tf.data.TFRecordDataset(path, compression)
        counts = [file.size.num_records for file in self.files]
        starts = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        return records.enumerate(tf.gather(starts, file))
