"""Batches of a program as it reads them: a data set, a generator, a PyDataset."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import keras
import tensorflow as tf

from models.base import Weighted
from strategies.common.errors import UsageError
from strategies.common.types import Batch
from strategies.inner_loop.sharding import shard_rows
from trainers.inputs.batches import batch_of_steps
from trainers.inputs.shuffling import Order


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgramStream:
    """Batches in the program's own order, never all held in memory.

    Satisfies `StreamedSource`.

    Attributes:
      endless: Batches of all epochs, one after the other: tuples of features, labels
        and perhaps sample weights.
      first: First batch.
      batch_size: Examples of the first batch; later ones may have fewer.
      steps_per_epoch: Number of batches of an epoch.
    """

    endless: tf.data.Dataset
    first: Any
    batch_size: int
    steps_per_epoch: int

    @property
    def num_examples(self) -> int:
        return self.batch_size * self.steps_per_epoch

    @property
    def example_bytes(self) -> None:
        return None

    def tensors(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `batches`")

    def read(self, tensors: Any, indices: tf.Tensor) -> NoReturn:
        raise TypeError("a stream cannot be read by index: see `batches`")

    def few(self, count: int) -> tuple[Any, Any]:
        """Returns features and labels of the first examples.

        Args:
          count: Number of examples.
        """
        return tf.nest.map_structure(lambda rows: rows[:count], _parts(self.first))

    def read_epoch(self, most_bytes: int) -> list[tuple[Any, Any]]:
        """Returns the features and labels of all batches of the first epoch.

        Args:
          most_bytes: Bytes that they may have.

        Raises:
          UsageError: They have more.
        """
        tensors = tensors_of(self.first)
        size = sum(rows.dtype.size * rows.shape.num_elements() for rows in tensors)
        size *= self.steps_per_epoch
        if size > most_bytes:
            raise UsageError(
                f"fit has data of {size / 2**30:.1f} GiB an epoch, which this strategy "
                "holds in memory: choose mirrored or multi_worker_mirrored, which read "
                "a stream."
            )
        return [_parts(batch) for batch in self.endless.take(self.steps_per_epoch)]

    def batches(self, order: Order, first_step: int, last_step: int) -> StreamBatches:
        """Returns the batches of a range of steps.

        Args:
          order: Order that assigns steps to epochs.
          first_step: First step, counted over epochs.
          last_step: Step after the last one.
        """
        return StreamBatches(
            stream=self, order=order, first_step=first_step, last_step=last_step
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamBatches:
    """Batches of steps from `first_step` up to, but not including, `last_step`.

    Satisfies `GlobalBatches` for strategies whose `Traits.supports_streaming` is true.
    Every process reads all batches and takes its rows of each.
    """

    stream: ProgramStream
    order: Order
    first_step: int
    last_step: int

    @property
    def data(self) -> ProgramStream:
        return self.stream

    def resident(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see Traits.supports_streaming")

    def at(
        self, resident: Any, step: Any, shard_index: Any, num_shards: int
    ) -> NoReturn:
        raise TypeError("a stream has no single steps: see Traits.supports_streaming")

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self.spans(shard_index, num_shards).unbatch()

    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        # A run that is continued reads what comes before, as it may be a generator.
        before = self.first_step - self.order.first_step
        batches = self.stream.endless.skip(before).enumerate(self.first_step)

        def shard(step: tf.Tensor, batch: Any) -> Batch:
            features, labels = _parts(batch)
            size = tf.shape(tf.nest.flatten(features)[0], tf.int64)[0]
            start, stop, num_rows = shard_rows(size, shard_index, num_shards)
            features, labels = tf.nest.map_structure(
                lambda rows: rows[start:stop], (features, labels)
            )
            # No example of a stream has a number: rows are numbered over all steps.
            first = step * self.stream.batch_size
            return batch_of_steps(
                first=step,
                shard_index=shard_index,
                num_rows=num_rows,
                global_size=size,
                indices=(first + tf.range(start, stop))[tf.newaxis],
                features=features,
                labels=labels,
            )

        count = self.last_step - self.first_step
        shards = batches.take(count).map(
            tf.autograph.experimental.do_not_convert(shard)
        )
        return shards.prefetch(tf.data.AUTOTUNE)


def tensors_of(batch: Any) -> list[tf.Tensor]:
    """Returns all tensors of a batch."""
    return [part for part in tf.nest.flatten(batch) if part is not None]


def _parts(batch: Any) -> tuple[Any, Any]:
    """Returns features, and labels with their sample weights if there are some."""
    features, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if labels is None:
        labels = ()
    if weights is None:
        return features, labels
    return features, Weighted(labels, weights)
