"""Global batches of a stream.

A stream cannot be asked for any step. It is read from the beginning of the epoch, or
of the pass over a process's files, and what comes before the first step is skipped
without being parsed; so a run that goes on sees what it would have seen.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from strategies.base import Batch
from strategies.batch import share_rows
from trainers.inputs.order import Order

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
        if self.stream.by_file:
            shares = self._of_own_files(share, num_shares)
        else:
            shares = self._of_whole_batches(share, num_shares)
        steps = tf.data.Dataset.range(self.first_step, self.last_step)

        def batch(step: tf.Tensor, rows: _Share) -> Batch:
            return self._batch(step, tf.constant(share, tf.int64), rows)

        return (
            tf.data.Dataset.zip((steps, shares))
            .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .prefetch(tf.data.AUTOTUNE)
        )

    def spans(self, share: int, num_shares: int) -> tf.data.Dataset:
        return self.dataset(share, num_shares).map(_as_span)

    @property
    def data(self) -> RecordStream:
        return self.stream

    def resident(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see Traits.takes_streams")

    def at(self, resident: Any, step: Any, share: Any, num_shares: int) -> NoReturn:
        raise TypeError("a stream has no single steps: see Traits.takes_streams")

    def _of_whole_batches(self, share: int, num_shares: int) -> tf.data.Dataset:
        """Of every global batch the rows that are this share's."""
        order = self.order
        chosen = range(len(self.stream.files))

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            records = self.stream.records(chosen, order.seed, number)
            return records.batch(
                order.global_batch_size, drop_remainder=order.drop_last_batch
            )

        def own_rows(*records: tf.Tensor) -> _Share:
            global_size = tf.size(records[0], tf.int64)
            start, stop, num_rows = share_rows(global_size, share, num_shares)
            payloads, indices, offsets = (values[start:stop] for values in records)
            return _Share(payloads, indices, offsets, num_rows, global_size)

        first_epoch, skipped = divmod(self.first_step, order.steps_per_epoch)
        epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
        return epochs.flat_map(epoch).skip(skipped).map(own_rows)

    def _of_own_files(self, share: int, num_shares: int) -> tf.data.Dataset:
        """As many rows of this share's own files as its rows of a global batch."""
        size = self.order.global_batch_size
        start, stop = (-(-s * size // num_shares) for s in (share, share + 1))
        chosen = range(share, len(self.stream.files), num_shares)
        seed = _seed_of_share(self.order.seed, share)

        def own_rows(*records: tf.Tensor) -> _Share:
            payloads, indices, offsets = records
            num_rows, global_size = (
                tf.constant(n, tf.int64) for n in (stop - start, size)
            )
            return _Share(payloads, indices, offsets, num_rows, global_size)

        examples = sum(self.stream.counts[file] for file in chosen)
        before = self.first_step * (stop - start)
        passes = tf.data.Dataset.range(before // examples, tf.int64.max)
        return (
            passes.flat_map(lambda n: self.stream.records(chosen, seed, n))
            .skip(before % examples)
            .batch(stop - start, drop_remainder=True)
            .map(own_rows)
        )

    def _batch(self, step: tf.Tensor, share: tf.Tensor, rows: _Share) -> Batch:
        features, labels = tf.numpy_function(
            self.stream.parse,
            [rows.payloads, rows.indices, rows.offsets],
            (tf.float32, tf.int64),
        )
        num_rows = rows.payloads.shape[:1]
        shape = self.stream.schema.input.shape
        return Batch(
            step=step,
            replica=share,
            global_size=rows.global_size,
            num_rows=rows.num_rows,
            indices=rows.indices,
            features=tf.ensure_shape(features, num_rows + shape),
            labels=tf.ensure_shape(labels, num_rows),
        )


class _Share(NamedTuple):
    """Records of a step, not parsed yet.

    Attributes:
      payloads: string [rows].
      indices: int64 [rows], in the data set.
      offsets: int64 [rows], in their files.
      num_rows: how many of them count.
      global_size: examples in the global batch.
    """

    payloads: tf.Tensor
    indices: tf.Tensor
    offsets: tf.Tensor
    num_rows: tf.Tensor
    global_size: tf.Tensor


@tf.autograph.experimental.do_not_convert
def _as_span(batch: Batch) -> Batch:
    """Of one step, without copying what it holds."""
    return tf.nest.map_structure(lambda values: tf.expand_dims(values, 0), batch)


def _seed_of_share(seed: int | None, share: int) -> int | None:
    """Other numbers for each share, so that not all shuffle alike."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, share]).generate_state(1)[0])
