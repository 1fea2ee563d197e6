"""Global batches of a stream.

A stream cannot be asked for any step. It is read from the beginning of the epoch, or
of the pass over a process's files, and what comes before the first step is skipped
without being parsed; so a run that goes on sees what it would have seen.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from strategies.base import Batch
from strategies.batch import share_rows
from trainers.inputs.order import Order
from trainers.inputs.spans import batch_of_steps, steps_at_once

if TYPE_CHECKING:
    from trainers.inputs.record_stream import RecordStream


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
