"""Batches of a program as it reads them: a data set, a generator, a PyDataset."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

import keras
import tensorflow as tf

from models.objective import Weighted
from strategies.common.types import Batch
from strategies.inner_loop.sharding import shard_rows
from trainers.inputs.batches import batch_of_steps
from trainers.inputs.shuffling import Order

# A window is sent to every worker, and a call of the inner loop has at most its steps.
_WINDOW_BYTES = 16 * 2**20
_MOST_WINDOW_STEPS = 512


class _Window(NamedTuple):
    """Batches of some steps, each tensor as a string.

    Batches differ in shape, and the arguments of a traced function may not.

    Attributes:
      first_step: First step, int64 scalar.
      sizes: Examples of each step, int64 [steps].
      features: Serialized tensors of features, strings [steps].
      labels: Serialized tensors of labels, strings [steps].
    """

    first_step: tf.Tensor
    sizes: tf.Tensor
    features: Any
    labels: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgramStream:
    """Batches in the program's own order, never all held in memory.

    Satisfies `StreamedSource`.

    Attributes:
      endless: Batches of all epochs, one after the other: tuples of features, labels
        and perhaps sample weights.
      full_batch: Batch of the usual size.
      batch_size: Examples of that batch; others may have fewer.
      num_batches: Number of batches of a pass over the data.
    """

    endless: tf.data.Dataset
    full_batch: Any
    batch_size: int
    num_batches: int
    # Not a field: the size of an example may change.
    example_bytes = None

    @property
    def num_examples(self) -> int:
        return self.batch_size * self.num_batches

    def tensors(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `batches`")

    def read(self, tensors: Any, indices: tf.Tensor) -> NoReturn:
        raise TypeError("a stream cannot be read by index: see `batches`")

    def few(self, count: int) -> tuple[Any, Any]:
        """Returns features and labels of the first examples.

        Args:
          count: Number of examples.
        """
        return tf.nest.map_structure(lambda rows: rows[:count], _parts(self.full_batch))

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

    Satisfies `StreamedBatches`. Where replicas are processes, every process reads all
    batches and takes its rows of each; parameter servers send windows to their workers.
    """

    stream: ProgramStream
    order: Order
    first_step: int
    last_step: int
    # Not a field: the size of a batch may change.
    largest_span = None

    @property
    def data(self) -> ProgramStream:
        return self.stream

    def cached_data(self) -> NoReturn:
        raise TypeError("a stream is kept nowhere: see `windows`")

    @property
    def window_steps(self) -> int:
        tensors = tensors_of(self.stream.full_batch)
        size = sum(rows.dtype.size * rows.shape.num_elements() for rows in tensors)
        # Not the steps from the present one on: windows after a rollback have one shape
        # with those before.
        all_steps = self.last_step - self.order.first_step
        return max(min(_WINDOW_BYTES // max(size, 1), _MOST_WINDOW_STEPS, all_steps), 1)

    def windows(self) -> Iterator[_Window]:
        """Yields windows; the last one may have fewer steps."""
        # The stream has no end, and what is read of it costs time.
        following = self._following().take(self.last_step - self.first_step)
        batches = iter(following.prefetch(tf.data.AUTOTUNE))
        for first in range(self.first_step, self.last_step, self.window_steps):
            some = list(itertools.islice(batches, self.window_steps))
            sizes = [len(tensors_of(batch)[0]) for batch in some]
            features, labels = tf.nest.map_structure(
                lambda *of_steps: self._filled(map(tf.io.serialize_tensor, of_steps)),
                *map(_parts, some),
            )
            yield _Window(
                tf.constant(first, tf.int64),
                tf.cast(self._filled(sizes), tf.int64),
                features,
                labels,
            )

    def _filled(self, of_steps: Iterable[Any]) -> tf.Tensor:
        """Returns scalars of steps as a vector, with zeros up to a window's length."""
        vector = tf.stack([*of_steps])
        return tf.pad(vector, [[0, self.window_steps - len(vector)]])

    def at(
        self,
        cached_data: _Window,
        step: tf.Tensor,
        shard_index: tf.Tensor | int,
        num_shards: int,
    ) -> Batch:
        index = step - cached_data.first_step
        size = cached_data.sizes[index]
        start, stop, num_rows = shard_rows(size, shard_index, num_shards)

        def rows_of(spec: tf.TensorSpec, serialized: tf.Tensor) -> tf.Tensor:
            rows = tf.io.parse_tensor(serialized[index], spec.dtype)
            return tf.ensure_shape(rows, spec.shape)[start:stop]

        features, labels = tf.nest.map_structure(
            rows_of,
            _parts(self.stream.endless.element_spec),
            (cached_data.features, cached_data.labels),
        )
        return Batch(
            step=step,
            replica=tf.cast(shard_index, tf.int64),
            global_size=size,
            num_rows=num_rows,
            indices=step * self.stream.batch_size + tf.range(start, stop),
            features=features,
            labels=labels,
        )

    def _following(self) -> tf.data.Dataset:
        """Returns the batches from the first step on."""
        # A run that is continued reads what comes before, as it may be a generator.
        return self.stream.endless.skip(self.first_step - self.order.first_step)

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self.spans(shard_index, num_shards).unbatch()

    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        batches = self._following().enumerate(self.first_step)

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
