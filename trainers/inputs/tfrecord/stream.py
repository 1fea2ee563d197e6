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
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from strategies.common import hashing
from strategies.common.errors import UsageError
from strategies.common.types import Batch
from strategies.inner_loop.sharding import shard_rows
from trainers.inputs.batches import batch_of_steps, steps_at_once
from trainers.inputs.shuffling import Order
from trainers.inputs.tfrecord.framing import is_compressed
from trainers.inputs.tfrecord.reader import FileSize, size_of
from trainers.inputs.tfrecord.schema import RecordSchema

# Both numbers are part of the order of records. More files at a time mix records
# better, and each holds some megabytes.
_FILES_AT_A_TIME = 8
_RECORDS_OF_A_TURN = 16
# Bounds of the default. With a buffer of 860 MB, 8,000 records, reading took 1.4 times
# as long as with one of 128 MiB (docs/performance.md).
_SHUFFLE_BUFFER_EXAMPLES = 10_000
_SHUFFLE_BUFFER_BYTES = 128 << 20
# Separates these random numbers from others with the key (seed, epoch).
_PURPOSE = 0x73687566666C65


def open_stream(
    files: Sequence[Path],
    schema: RecordSchema,
    *,
    num_classes: int,
    by_file: bool,
    shuffle_buffer_examples: int | None,
) -> RecordStream:
    """Counts the records of all files by their lengths, which are checked.

    Args:
      files: Files in an order that all processes share.
      schema: Schema of the records.
      num_classes: Upper bound of labels, not included.
      by_file: True if each process reads different files.
      shuffle_buffer_examples: Number of examples in the shuffle buffer; None for as
        many as have 128 MiB by the average length of all records, 10,000 at most.

    Raises:
      UsageError: A file cannot be read, is empty, truncated, or a length is damaged.
    """
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        opened = tuple(threads.map(_open_file, files))
    if shuffle_buffer_examples is None:
        shuffle_buffer_examples = _default_shuffle_buffer([f.size for f in opened])
    return RecordStream(
        files=opened,
        schema=schema,
        num_classes=num_classes,
        by_file=by_file,
        shuffle_buffer_examples=shuffle_buffer_examples,
    )


def _default_shuffle_buffer(sizes: Sequence[FileSize]) -> int:
    """Returns a number of examples that is the same for every process."""
    num_bytes = sum(size.num_bytes for size in sizes)
    fitting = _SHUFFLE_BUFFER_BYTES * sum(s.num_records for s in sizes) // num_bytes
    return min(max(fitting, 1), _SHUFFLE_BUFFER_EXAMPLES)


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


def _open_file(path: Path) -> StreamFile:
    # Before the lengths: a change while they are read must not be missed.
    version = _version_of(path)
    return StreamFile(
        path=path,
        size=size_of(path),
        version=version,
        compression="GZIP" if is_compressed(path) else "",
    )


def _version_of(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read any more ({error.strerror}): leave files alone "
            "while they are trained on."
        ) from error
    return status.st_size, status.st_mtime_ns


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RecordStream:
    """Examples of TFRecord files, read one after the other.

    It satisfies the part of `Source` that a stream can: the number of examples.

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

    @property
    def example_bytes(self) -> None:
        return None

    def tensors(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `batches`")

    def read(self, tensors: Any, indices: tf.Tensor) -> NoReturn:
        raise TypeError("a stream cannot be read by index: see `batches`")

    def few(self, count: int) -> NoReturn:
        raise TypeError("examples are taken from those to evaluate on")

    def batches(self, order: Order, first_step: int, last_step: int) -> StreamBatches:
        """Returns the batches of a range of steps.

        Args:
          order: Order that assigns steps to epochs; its permutation is not used.
          first_step: First step, counted over epochs.
          last_step: Step after the last one, counted over epochs.
        """
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamBatches:
    """Batches of steps from `first_step` up to, but not including, `last_step`.

    It satisfies `GlobalBatches` for strategies whose `Traits.supports_streaming` is
    true.

    With sharding by example every shard reads all files and takes its rows of each
    global batch: batches are the same with any number of shards. With sharding by file
    shard s of n has the files s, s + n, ... and repeats them independently of the
    others: global batches differ with the number of shards, and are always full.

    Attributes:
      stream: Stream of records.
      order: Order with the number of steps per epoch; its permutation is not used.
      first_step: First step, counted over epochs.
      last_step: Step after the last one, counted over epochs.
    """

    stream: RecordStream
    order: Order
    first_step: int
    last_step: int

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self.spans(shard_index, num_shards).unbatch()

    @property
    def largest_span(self) -> None:
        return None

    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        if self.stream.by_file:
            spans = self._of_own_files(shard_index, num_shards)
        else:
            spans = self._of_whole_batches(shard_index, num_shards)

        def parsed(span: _Span) -> Batch:
            return self._of_steps(shard_index, span)

        return spans.map(
            parsed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        ).prefetch(tf.data.AUTOTUNE)

    @property
    def data(self) -> RecordStream:
        return self.stream

    def cached_data(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see Traits.supports_streaming")

    def at(
        self, cached_data: Any, step: Any, shard_index: Any, num_shards: int
    ) -> NoReturn:
        raise TypeError("a stream has no single steps: see Traits.supports_streaming")

    def _of_whole_batches(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        """Returns this shard's rows of every global batch."""
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
            """Returns full batches, and then the remaining records of an epoch."""
            size = tf.constant(order.global_batch_size, tf.int64)
            count = tf.size(rows.indices, tf.int64) // size
            full = rows.part(0, count * size).in_steps(size)
            full = self._wanted(_Span(first, size, size, full))
            if order.drop_last_batch:
                return full
            rest = rows.part(count * size, None)
            size = tf.size(rest.indices, tf.int64)
            # A reshape to [-1, 0] is an error: without a rest it is [0, 1].
            rest = rest.in_steps(tf.maximum(size, 1))
            rest = self._wanted(_Span(first + count, size, size, rest))
            return full.concatenate(rest)

        def own_rows(span: _Span) -> _Span:
            start, stop, num_rows = shard_rows(
                span.global_size, shard_index, num_shards
            )
            rows = _Rows(*(values[:, start:stop] for values in span.rows))
            return span._replace(rows=rows, num_rows=num_rows)

        first_epoch = self.first_step // order.steps_per_epoch
        # The last epoch is included: division rounds up.
        epochs = tf.data.Dataset.range(
            first_epoch, -(-self.last_step // order.steps_per_epoch)
        )
        return epochs.flat_map(epoch).map(own_rows)

    def _of_own_files(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        """Returns rows of this shard's files, as many per step as the shard has."""
        size = self.order.global_batch_size
        # Unlike `shard_rows`, these bounds are Python numbers: every batch is full.
        start, stop = (
            -(-s * size // num_shards) for s in (shard_index, shard_index + 1)
        )
        chosen = range(shard_index, len(self.stream.files), num_shards)
        seed = _seed_of_shard(self.order.seed, shard_index)
        most = self._steps_at_once()

        def spans(chunk: tf.Tensor, rows: tuple[tf.Tensor, ...]) -> tf.data.Dataset:
            num_rows, global_size = (
                tf.constant(n, tf.int64) for n in (stop - start, size)
            )
            first = self.first_step + chunk * most
            own = _Rows(*rows).in_steps(num_rows)
            return self._wanted(_Span(first, global_size, num_rows, own))

        examples = sum(self.stream.files[file].size.num_records for file in chosen)
        # Records that this shard has used before the first step, over all passes.
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
        """Returns the steps between `first_step` and `last_step`, or nothing."""
        begin = tf.maximum(self.first_step - span.first, 0)
        stop = tf.maximum(self.last_step - span.first, 0)
        span = span._replace(first=span.first + begin, rows=span.rows.part(begin, stop))
        # An element without steps would be an empty batch.
        is_any = tf.cast(tf.size(span.rows.indices) > 0, tf.int64)
        return tf.data.Dataset.from_tensors(span).take(is_any)

    def _of_steps(self, shard_index: int, span: _Span) -> Batch:
        stream = self.stream
        features, labels = stream.schema.parse(
            tf.reshape(span.rows.payloads, [-1]), stream.num_classes - 1
        )
        return batch_of_steps(
            first=span.first,
            shard_index=shard_index,
            num_rows=span.num_rows,
            global_size=span.global_size,
            indices=span.rows.indices,
            features=features,
            labels=labels,
        )


class _Rows(NamedTuple):
    """Unparsed records: [records], or [steps, records of a step].

    Attributes:
      indices: Indices in the data set, int64.
      payloads: Serialized Examples, string.
    """

    indices: tf.Tensor
    payloads: tf.Tensor

    def part(self, start: Any, stop: Any) -> _Rows:
        """Returns a range of records, or of steps."""
        return _Rows(*(values[start:stop] for values in self))

    def in_steps(self, size: tf.Tensor) -> _Rows:
        """Returns the records as steps of `size` records each."""
        return _Rows(*(tf.reshape(values, [-1, size]) for values in self))


class _Span(NamedTuple):
    """Steps whose batches have one size.

    Attributes:
      first: First of the steps.
      global_size: Number of examples in each global batch.
      num_rows: Number of records per step that count.
      rows: Records [steps, records of a step].
    """

    first: tf.Tensor
    global_size: tf.Tensor
    num_rows: tf.Tensor
    rows: _Rows


def _seed_of_shard(seed: int | None, shard_index: int) -> int | None:
    """Returns a different seed for each shard, so that not all shuffle alike."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, shard_index]).generate_state(1)[0])
