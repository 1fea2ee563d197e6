"""Global batches: of examples that are read by index, and of any source."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch, GlobalBatches, SpanShape
from trainers.inputs.augmentation import Augment
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Source, StreamedSource

# Large enough to amortize the overhead per element of tf.data; more only adds latency
# (docs/performance_history.md).
_STEPS_AT_ONCE = 32
_BYTES_AT_ONCE = 2**18
# Data in memory is only copied. With 20 steps of 200 KB each, in place of one, a step
# of a 784-512-512-10 network went from 2.9 to 2.4 ms.
_BYTES_IN_MEMORY = 2**22

# First step and step after the last one of a chunk, by its number.
_LimitsOfChunk = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceBatches:
    """Batches of steps from `first_step` up to, but not including, `last_step`.

    Satisfies `GlobalBatches`.

    Attributes:
      source: Examples.
      order: Order of the examples; with a seed, if they are augmented.
      first_step: First step, counted over epochs.
      last_step: Step after the last one, counted over epochs.
      augment: Change of features by step; None to leave them as they are read.
      repeats: True if `first_step` follows the last one, again and again.
    """

    source: Source
    order: Order
    first_step: int
    last_step: int
    augment: Augment | None = None
    repeats: bool = False
    # By shard and number of shards. To trace its functions took two thirds of an
    # evaluation of the digits.
    _pipelines: dict[tuple[int, int], tf.data.Dataset] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def data(self) -> Source:
        return self.source

    def dataset(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        return self.spans(shard_index, num_shards).unbatch()

    @property
    def largest_span(self) -> SpanShape:
        # No span goes beyond the end of an epoch.
        size, examples = self.order.global_batch_size, self.order.examples_per_epoch
        most_steps = min(self._steps_at_once(), max(examples // size, 1))
        is_last_smaller = examples > size and examples % size > 0
        return SpanShape(most_steps, min(size, examples), is_last_smaller)

    def spans(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        key = shard_index, num_shards
        if key not in self._pipelines:
            self._pipelines[key] = self._pipeline(shard_index, num_shards)
        return self._pipelines[key]

    def _pipeline(self, shard_index: int, num_shards: int) -> tf.data.Dataset:
        tensors = self.source.tensors()
        chunks, limits = self._chunks(self._steps_at_once())

        def batches(chunk: tf.Tensor) -> Batch:
            """Reads batches of one size as one batch with tensors [steps, ...]."""
            first, stop = limits(chunk)
            indices, num_rows, global_size = self.order.indices_for_steps(
                first, stop - first, shard_index, num_shards
            )
            # If features depend on the step, there is only one: see `_steps_at_once`.
            features, labels = self._read(tensors, tf.reshape(indices, [-1]), first)
            return batch_of_steps(
                first=first,
                shard_index=shard_index,
                num_rows=num_rows,
                global_size=global_size,
                indices=indices,
                features=features,
                labels=labels,
            )

        return (
            chunks.map(
                # AutoGraph has nothing to convert here, and takes 0.05 s to find that
                # out.
                tf.autograph.experimental.do_not_convert(batches),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            .prefetch(tf.data.AUTOTUNE)
            .with_options(_without_tuning())
        )

    def cached_data(self) -> tf.data.Dataset:
        # Every step is computed from the same element.
        return tf.data.Dataset.from_tensors(self.source.tensors()).repeat()

    def at(
        self,
        cached_data: Any,
        step: tf.Tensor,
        shard_index: tf.Tensor | int,
        num_shards: int,
    ) -> Batch:
        if self.repeats:
            num_steps = self.last_step - self.first_step
            step = self.first_step + (step - self.first_step) % num_steps
        indices, num_rows, global_size = self.order.indices(
            step, shard_index, num_shards
        )
        features, labels = self._read(cached_data, indices, step)
        return Batch(
            step=step,
            replica=tf.cast(shard_index, tf.int64),
            global_size=global_size,
            num_rows=num_rows,
            indices=indices,
            features=features,
            labels=labels,
        )

    def _read(
        self, tensors: Any, indices: tf.Tensor, step: tf.Tensor
    ) -> tuple[Any, Any]:
        """Reads features, augmented for the step, and labels."""
        features, labels = self.source.read(tensors, indices)
        if self.augment is not None and self.order.seed is not None:
            features = self.augment(features, indices, step, self.order.seed)
        return features, labels

    def _steps_at_once(self) -> int:
        """Returns the maximum number of steps that are read together."""
        if self.source.example_bytes is None or self.augment is not None:
            # Augmentation depends on the step: each step is read separately.
            return 1
        step_bytes = self.source.example_bytes * self.order.global_batch_size
        return steps_at_once(step_bytes, _BYTES_IN_MEMORY)

    def _chunks(self, most: int) -> tuple[tf.data.Dataset, _LimitsOfChunk]:
        """Returns a dataset of chunk numbers and the function to a chunk's steps.

        A chunk has at most `most` steps of one epoch, with batches of one size. A
        smaller last step of an epoch is a separate chunk.
        """
        order = self.order
        full = order.examples_per_epoch // order.global_batch_size
        # Chunks of full batches in an epoch, rounded up.
        of_full = -(-full // most)
        per_epoch = of_full + order.steps_per_epoch - full

        def chunk_of(step: int) -> int:
            epoch, batch = divmod(step - order.first_step, order.steps_per_epoch)
            return epoch * per_epoch + (batch // most if batch < full else of_full)

        def limits(chunk: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            begin = order.first_step + chunk // per_epoch * order.steps_per_epoch
            within = chunk % per_epoch
            is_full = within < of_full
            first = begin + tf.where(is_full, within * most, full)
            last_full = tf.minimum(first + most, begin + full)
            stop = tf.where(is_full, last_full, begin + order.steps_per_epoch)
            # Chunks begin at fixed steps of an epoch, and are cut at both ends of the
            # range.
            return tf.maximum(first, self.first_step), tf.minimum(stop, self.last_step)

        if self.first_step == self.last_step:
            return tf.data.Dataset.range(0), limits
        stop = chunk_of(self.last_step - 1) + 1
        chunks = tf.data.Dataset.range(chunk_of(self.first_step), stop)
        return chunks.repeat() if self.repeats else chunks, limits


def batches_of(
    source: Source,
    order: Order,
    first_step: int,
    last_step: int,
    augment: Augment | None = None,
    repeats: bool = False,
) -> GlobalBatches:
    """Returns the batches of a range of steps of any source; see `SourceBatches`."""
    if isinstance(source, StreamedSource):
        return source.batches(order, first_step, last_step)
    return SourceBatches(
        source=source,
        order=order,
        first_step=first_step,
        last_step=last_step,
        augment=augment,
        repeats=repeats,
    )


def _without_tuning() -> tf.data.Options:
    """Returns options under which an iterator starts in 0.02 s instead of 0.05 s.

    Nothing is lost: the pipeline has no steps to merge, and as many calls in parallel
    as there are cores, at most 16, read data in memory 0 to 8 % faster than a number
    that is tuned (64 to 27,648 features an example, with and without augmentation).
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return options


def steps_at_once(step_bytes: int, most_bytes: int = _BYTES_AT_ONCE) -> int:
    """Returns the maximum number of steps that are read together.

    They have at most `most_bytes`, unless one step has more.
    """
    return min(max(most_bytes // max(step_bytes, 1), 1), _STEPS_AT_ONCE)


def batch_of_steps(
    *,
    first: tf.Tensor,
    shard_index: int,
    num_rows: tf.Tensor,
    global_size: tf.Tensor,
    indices: tf.Tensor,
    features: Any,
    labels: Any,
) -> Batch:
    """Returns batches of one size as one batch with tensors [steps, ...].

    Args:
      first: First step, an int64 scalar.
      shard_index: Index of the shard that the rows belong to.
      num_rows: Number of rows per step that count.
      global_size: Number of examples in each global batch.
      indices: Indices in the data set, int64 [steps, rows of a step].
      features: Tensors [rows of all steps, ...] with a static shape, except their
        number of rows.
      labels: Tensors of labels with the same first dimension.
    """
    shape = tf.shape(indices)
    count = tf.cast(shape[0], tf.int64)
    same = functools.partial(tf.fill, [count])
    divided = functools.partial(_per_step, shape=shape)
    return Batch(
        step=first + tf.range(count),
        replica=same(tf.constant(shard_index, tf.int64)),
        global_size=same(global_size),
        num_rows=same(num_rows),
        indices=indices,
        features=tf.nest.map_structure(divided, features),
        labels=tf.nest.map_structure(divided, labels),
    )


def _per_step(rows: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Reshapes [rows of all steps, ...] to [steps, rows of a step, ...]."""
    inner = tf.shape(rows)[1:]
    divided = tf.reshape(rows, tf.concat([shape, inner], axis=0))
    # The dynamic reshape has lost the static shape of an example.
    return tf.ensure_shape(divided, [None, None, *rows.shape[1:]])
