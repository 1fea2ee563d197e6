"""TFRecord files as a stream: read one after the other, never all held in memory.

The order in which records come depends on the seed, on which files are read and on
how often they were read before. Files are shuffled, a few of them are read by turns,
and of what they give a buffer is shuffled.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from strategies.settings import UsageError
from trainers import hashing
from trainers.inputs.order import Order
from trainers.inputs.record_examples import examples_of
from trainers.inputs.record_files import count_records, is_compressed, read_pieces
from trainers.inputs.record_schema import RecordSchema
from trainers.inputs.record_walk import place_of
from trainers.inputs.stream_batches import StreamBatches

# Part of the order: more of them mix records better, and each holds some megabytes.
_FILES_AT_A_TIME = 8
_RECORDS_OF_A_TURN = 16
# Tells these numbers apart from others that are keyed by (seed, epoch).
_PURPOSE = 0x73687566666C65


def open_stream(
    files: Sequence[Path],
    schema: RecordSchema,
    *,
    num_classes: int,
    by_file: bool,
    shuffle_buffer_examples: int,
) -> RecordStream:
    """Counts the records of all files by their lengths, which are checked.

    Args:
      files: in an order that all processes share.
      schema: what records hold.
      num_classes: labels are less.
      by_file: whether processes have files of their own.
      shuffle_buffer_examples: how many examples are shuffled at a time.

    Raises:
      UsageError: a file cannot be read, is empty, is cut short or a length damaged.
    """
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        counts = list(threads.map(count_records, files))
    return RecordStream(
        files=tuple(files),
        counts=tuple(counts),
        schema=schema,
        num_classes=num_classes,
        by_file=by_file,
        shuffle_buffer_examples=shuffle_buffer_examples,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RecordStream:
    """Examples of TFRecord files, which come one after the other.

    Satisfies `Source` as far as a stream can, which is to say how many there are.

    Attributes:
      files: all of them.
      counts: records of each.
      schema: what records hold.
      num_classes: labels are less.
      by_file: whether processes have files of their own, or all read all of them and
        have rows of common batches.
      shuffle_buffer_examples: how many examples are shuffled at a time.
    """

    files: tuple[Path, ...]
    counts: tuple[int, ...]
    schema: RecordSchema
    num_classes: int
    by_file: bool
    shuffle_buffer_examples: int

    @property
    def num_examples(self) -> int:
        return sum(self.counts)

    @property
    def example_bytes(self) -> None:
        return None

    def tensors(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `batches`")

    def read(self, tensors: Any, indices: tf.Tensor) -> NoReturn:
        raise TypeError("a stream cannot be read by index: see `batches`")

    def batches(self, order: Order, first_step: int, last_step: int) -> StreamBatches:
        """The batches of a stretch of steps.

        Args:
          order: says how steps fall into epochs; its own permutation is not used.
          first_step: counted over epochs.
          last_step: likewise, and not included.
        """
        return StreamBatches(
            stream=self, order=order, first_step=first_step, last_step=last_step
        )

    def records(
        self, chosen: Sequence[int], seed: int | None, time: tf.Tensor
    ) -> tf.data.Dataset:
        """Records of some files, each once. Called inside a data set's function.

        Args:
          chosen: numbers of the files.
          seed: decides the order; None for the files' own.
          time: int64 scalar, how often these files were read before.

        Returns:
          Scalars (data, index in the data set, byte at which it begins in its file).
        """
        order = Order(
            num_examples=len(chosen), global_batch_size=len(chosen), seed=seed
        )
        places, _, _ = order.indices(time, 0, 1)
        files = tf.gather(tf.constant(list(chosen), tf.int64), places)
        # A single file is not read any sooner by several threads, and what they hand to
        # each other took two of five microseconds a record.
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
        # `shuffle` mixes its seed with that of the graph: here, of the data set's
        # function in which this is traced, and not of the process. Zero would have it
        # ask whether its own is zero too, which a tensor does not answer.
        tf.random.set_seed(1)
        return records.shuffle(
            self.shuffle_buffer_examples, seed=key, reshuffle_each_iteration=False
        )

    def parse(
        self, payloads: np.ndarray, indices: np.ndarray, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Examples of records that may be of several files.

        Args:
          payloads: bytes objects [n].
          indices: int64 [n], in the data set.
          offsets: int64 [n], in their files.

        Returns:
          Features float32 [n, ...] and labels int64 [n].

        Raises:
          UsageError: a record does not match the schema.
        """
        records = _Gathered(self, payloads.tolist(), indices, offsets)
        return examples_of(records, self.schema, self.num_classes)

    def place(self, index: int, offset: int) -> str:
        """Where an example is, in the words every error message begins with."""
        starts = self._starts()
        file = int(np.searchsorted(starts, index, side="right")) - 1
        path = self.files[file]
        return place_of(path, index - int(starts[file]), offset, is_compressed(path))

    def _records_of_file(self, file: tf.Tensor) -> tf.data.Dataset:
        signature = (
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int64),
        )
        pieces = tf.data.Dataset.from_generator(
            self._read, output_signature=signature, args=(file,)
        )
        return pieces.unbatch()

    def _read(self, file: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Data, indices and offsets of the records of a file, piece by piece."""
        path, start, number = self.files[file], int(self._starts()[file]), 0
        for piece in read_pieces(path):
            number = piece.first + len(piece.payloads)
            indices = np.arange(start + piece.first, start + number)
            yield np.array(piece.payloads, object), indices, piece.offsets
        if number != self.counts[file]:
            raise UsageError(
                f"{path}: has {number} records now, and had {self.counts[file]} when "
                "it was opened: leave files alone while they are trained on."
            )

    def _starts(self) -> np.ndarray:
        """Index of the first example of each file: int64 [files]."""
        return np.cumsum([0, *self.counts[:-1]])


@dataclasses.dataclass(frozen=True, slots=True)
class _Gathered:
    """Records of several files. Satisfies `PlacedRecords`."""

    stream: RecordStream
    payloads: Sequence[bytes]
    indices: np.ndarray
    offsets: np.ndarray

    def place(self, index: int) -> str:
        return self.stream.place(int(self.indices[index]), int(self.offsets[index]))
