"""TFRecord files as a stream: read in order, never all held in memory.

The order of records depends on the seed, the files that are read and how often they were
read before. Files are shuffled, a few of them are read by turns, and a buffer of their
records is shuffled.

A stream has no random access. It is read from the beginning of the epoch, or of the pass
over a process's files, and records before the first step are skipped without being
parsed; so a resumed run sees the records that it would have seen.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from strategies.common import hashing
from strategies.common.errors import UsageError
from strategies.common.types import Batch
from strategies.inner_loop.sharding import share_rows
from trainers.inputs.batches import batch_of_steps, steps_at_once
from trainers.inputs.shuffling import Order
from trainers.inputs.tfrecord.reader import (
    count_records,
    is_compressed,
    place_of,
    read_pieces,
)
from trainers.inputs.tfrecord.schema import RecordSchema, examples_of

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamBatches:
    """The batches of steps from `first_step` up to, but not including, `last_step`.

    Satisfies `GlobalBatches`, for strategies whose traits say that they take streams.

    *By example* every share reads all files, and takes its rows of each global batch:
    the same batches with any number of shares. *By file* share s of n has the files
    s, s + n, ... and goes over them again and again, whether others are done or not:
    global batches are other ones with another number of shares, and are always full.

    Attributes:
      stream: of records.
      order: which says how many steps an epoch has; its own permutation is not used.
      first_step: counted over epochs.
      last_step: likewise.
    """

    stream: RecordStream
    order: Order
    first_step: int
    last_step: int

    def dataset(self, share: int, num_shares: int) -> tf.data.Dataset:
        return self.spans(share, num_shares).unbatch()

    def spans(self, share: int, num_shares: int) -> tf.data.Dataset:
        if self.stream.by_file:
            spans = self._of_own_files(share, num_shares)
        else:
            spans = self._of_whole_batches(share, num_shares)

        def parsed(span: _Span) -> Batch:
            return self._of_steps(share, span)

        return spans.map(
            parsed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        ).prefetch(tf.data.AUTOTUNE)

    @property
    def data(self) -> RecordStream:
        return self.stream

    def resident(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see Traits.takes_streams")

    def at(self, resident: Any, step: Any, share: Any, num_shares: int) -> NoReturn:
        raise TypeError("a stream has no single steps: see Traits.takes_streams")

    def _of_whole_batches(self, share: int, num_shares: int) -> tf.data.Dataset:
        """Of every global batch the rows that are this share's."""
        order, most = self.order, self._steps_at_once()
        chosen = range(len(self.stream.files))

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            records = self.stream.records(chosen, order.seed, number)
            chunks = records.batch(most * order.global_batch_size).enumerate()
            first = number * order.steps_per_epoch
            return chunks.flat_map(
                lambda chunk, rows: spans(first + chunk * most, _Rows(*rows))
            )

        def spans(first: tf.Tensor, rows: _Rows) -> tf.data.Dataset:
            """Full batches, and what is left of an epoch after them."""
            size = tf.constant(order.global_batch_size, tf.int64)
            count = tf.size(rows.indices, tf.int64) // size
            full = rows.part(0, count * size).in_steps(size)
            full = self._wanted(_Span(first, size, size, full))
            if order.drop_last_batch:
                return full
            rest = rows.part(count * size, None)
            size = tf.size(rest.indices, tf.int64)
            rest = rest.in_steps(tf.maximum(size, 1))
            rest = self._wanted(_Span(first + count, size, size, rest))
            return full.concatenate(rest)

        def own_rows(span: _Span) -> _Span:
            start, stop, num_rows = share_rows(span.global_size, share, num_shares)
            rows = _Rows(*(values[:, start:stop] for values in span.rows))
            return span._replace(rows=rows, num_rows=num_rows)

        first_epoch = self.first_step // order.steps_per_epoch
        epochs = tf.data.Dataset.range(
            first_epoch, -(-self.last_step // order.steps_per_epoch)
        )
        return epochs.flat_map(epoch).map(own_rows)

    def _of_own_files(self, share: int, num_shares: int) -> tf.data.Dataset:
        """As many rows of this share's own files as its rows of a global batch."""
        size = self.order.global_batch_size
        start, stop = (-(-s * size // num_shares) for s in (share, share + 1))
        chosen = range(share, len(self.stream.files), num_shares)
        seed = _seed_of_share(self.order.seed, share)
        most = self._steps_at_once()

        def spans(chunk: tf.Tensor, rows: tuple[tf.Tensor, ...]) -> tf.data.Dataset:
            num_rows, global_size = (
                tf.constant(n, tf.int64) for n in (stop - start, size)
            )
            first = self.first_step + chunk * most
            own = _Rows(*rows).in_steps(num_rows)
            return self._wanted(_Span(first, global_size, num_rows, own))

        examples = sum(self.stream.counts[file] for file in chosen)
        before = self.first_step * (stop - start)
        passes = tf.data.Dataset.range(before // examples, tf.int64.max)
        return (
            passes.flat_map(lambda n: self.stream.records(chosen, seed, n))
            .skip(before % examples)
            .batch(most * (stop - start), drop_remainder=True)
            .take(-(-(self.last_step - self.first_step) // most))
            .enumerate()
            .flat_map(spans)
        )

    def _steps_at_once(self) -> int:
        values = math.prod(self.stream.schema.input.shape)
        return steps_at_once(4 * values * self.order.global_batch_size)

    def _wanted(self, span: _Span) -> tf.data.Dataset:
        """Those of its steps that are this object's, or nothing."""
        begin = tf.maximum(self.first_step - span.first, 0)
        stop = tf.maximum(self.last_step - span.first, 0)
        span = span._replace(first=span.first + begin, rows=span.rows.part(begin, stop))
        is_any = tf.cast(tf.size(span.rows.indices) > 0, tf.int64)
        return tf.data.Dataset.from_tensors(span).take(is_any)

    def _of_steps(self, share: int, span: _Span) -> Batch:
        features, labels = tf.numpy_function(
            self.stream.parse,
            [tf.reshape(values, [-1]) for values in span.rows],
            (tf.float32, tf.int64),
        )
        return batch_of_steps(
            first=span.first,
            share=share,
            num_rows=span.num_rows,
            global_size=span.global_size,
            indices=span.rows.indices,
            features=tf.ensure_shape(features, [None, *self.stream.schema.input.shape]),
            labels=tf.ensure_shape(labels, [None]),
        )


class _Rows(NamedTuple):
    """Records, not parsed yet: [records], or [steps, records of a step].

    Attributes:
      payloads: string.
      indices: int64, in the data set.
      offsets: int64, in their files.
    """

    payloads: tf.Tensor
    indices: tf.Tensor
    offsets: tf.Tensor

    def part(self, start: Any, stop: Any) -> _Rows:
        """Of records, or of steps."""
        return _Rows(*(values[start:stop] for values in self))

    def in_steps(self, size: tf.Tensor) -> _Rows:
        """Those of steps that have so many each."""
        return _Rows(*(tf.reshape(values, [-1, size]) for values in self))


class _Span(NamedTuple):
    """Steps whose batches have one size.

    Attributes:
      first: of the steps.
      global_size: examples in each global batch.
      num_rows: how many of a step's records count.
      rows: [steps, records of a step].
    """

    first: tf.Tensor
    global_size: tf.Tensor
    num_rows: tf.Tensor
    rows: _Rows


def _seed_of_share(seed: int | None, share: int) -> int | None:
    """Other numbers for each share, so that not all shuffle alike."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, share]).generate_state(1)[0])
