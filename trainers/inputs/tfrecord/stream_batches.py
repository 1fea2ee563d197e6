"""Batches of a stream of records, as spans of steps with batches of one size."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from strategies.common.types import Batch
from strategies.inner_loop.sharding import shard_rows
from trainers.inputs.batches import batch_of_steps, steps_at_once
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import counted

if TYPE_CHECKING:
    from trainers.inputs.tfrecord.stream import RecordStream


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
    # Not a field: spans have no bound that is known.
    largest_span = None

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self.spans(shard_index, num_shards).unbatch()

    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        if self.stream.by_file:
            spans = self._spans_by_file(shard_index, num_shards)
        else:
            spans = self._spans_by_example(shard_index, num_shards)

        def parsed(span: _Span) -> Batch:
            features, labels = self.stream.schema.parse(
                tf.reshape(span.rows.payloads, [-1]), self.stream.num_classes - 1
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

    def _spans_by_example(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        """Returns this shard's rows of every global batch."""
        order, most = self.order, self._steps_at_once()
        chosen = range(len(self.stream.files))

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            records = self.stream.records(chosen, order.seed, number)
            chunks = records.batch(most * order.global_batch_size).enumerate()
            if self.first_step:
                chunks = counted(chunks)
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

    def _spans_by_file(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
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
        records = passes.flat_map(lambda n: self.stream.records(chosen, seed, n))
        num_chunks, rest = divmod(before % examples, most * (stop - start))
        chunks = records.skip(rest).batch(most * (stop - start), drop_remainder=True)
        if self.first_step:
            chunks = counted(chunks)
        return (
            chunks.skip(num_chunks)
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
