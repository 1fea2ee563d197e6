"""Global batches of examples that can be read by index."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch
from trainers.inputs.augmentation import Augment
from trainers.inputs.shuffling import Order
from trainers.inputs.sources import Source


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceBatches:
    """The batches of steps from `first_step` up to, but not including, `last_step`.

    Satisfies `GlobalBatches`.

    Attributes:
      source: of the examples.
      order: in which they come; with a seed, if they are augmented.
      first_step: counted over epochs.
      last_step: likewise.
      augment: changes features by step; None to leave them as they are read.
      repeats: whether `first_step` follows the last one, again and again.
    """

    source: Source
    order: Order
    first_step: int
    last_step: int
    augment: Augment | None = None
    repeats: bool = False
    # By share and number of shares. To trace its functions took two thirds of an
    # evaluation of the digits.
    _pipelines: dict[tuple[int, int], tf.data.Dataset] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def data(self) -> Source:
        return self.source

    def dataset(self, share: int, num_shares: int) -> tf.data.Dataset:
        return self.spans(share, num_shares).unbatch()

    def spans(self, share: int, num_shares: int) -> tf.data.Dataset:
        key = share, num_shares
        if key not in self._pipelines:
            self._pipelines[key] = self._pipeline(share, num_shares)
        return self._pipelines[key]

    def _pipeline(self, share: int, num_shares: int) -> tf.data.Dataset:
        tensors = self.source.tensors()

        def batches(first: tf.Tensor, stop: tf.Tensor) -> Batch:
            return self._of_steps(tensors, first, stop, share, num_shares)

        return (
            self._limits(self._steps_at_once())
            .map(
                # Autograph has nothing to convert here, and takes its time to find out.
                tf.autograph.experimental.do_not_convert(batches),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            .prefetch(tf.data.AUTOTUNE)
        )

    def resident(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(self.source.tensors()).repeat()

    def at(
        self, resident: Any, step: tf.Tensor, share: tf.Tensor | int, num_shares: int
    ) -> Batch:
        if self.repeats:
            num_steps = self.last_step - self.first_step
            step = self.first_step + (step - self.first_step) % num_steps
        indices, num_rows, global_size = self.order.indices(step, share, num_shares)
        features, labels = self._read(resident, indices, step)
        return Batch(
            step=step,
            replica=tf.cast(share, tf.int64),
            global_size=global_size,
            num_rows=num_rows,
            indices=indices,
            features=features,
            labels=labels,
        )

    def _read(
        self, tensors: Any, indices: tf.Tensor, step: tf.Tensor
    ) -> tuple[Any, Any]:
        """Features, augmented as of that step, and labels."""
        features, labels = self.source.read(tensors, indices)
        if self.augment is not None and self.order.seed is not None:
            features = self.augment(features, indices, step, self.order.seed)
        return features, labels

    def _steps_at_once(self) -> int:
        """How many steps are read together, at most."""
        if self.source.example_bytes is None or self.augment is not None:
            return 1
        return steps_at_once(self.source.example_bytes * self.order.global_batch_size)

    def _limits(self, most: int) -> tf.data.Dataset:
        """First and stop of spans of steps.

        A span is within an epoch and has at most so many steps, with batches of one
        size: the last step of an epoch, if it has a smaller one, is a span of its own.
        """
        order = self.order
        full = order.examples_per_epoch // order.global_batch_size
        of_full = -(-full // most)
        per_epoch = of_full + order.steps_per_epoch - full

        def span_of(step: int) -> int:
            epoch, batch = divmod(step, order.steps_per_epoch)
            return epoch * per_epoch + (batch // most if batch < full else of_full)

        def limits(span: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            begin = span // per_epoch * order.steps_per_epoch
            within = span % per_epoch
            is_full = within < of_full
            first = begin + tf.where(is_full, within * most, full)
            last_full = tf.minimum(first + most, begin + full)
            stop = tf.where(is_full, last_full, begin + order.steps_per_epoch)
            return tf.maximum(first, self.first_step), tf.minimum(stop, self.last_step)

        if self.first_step == self.last_step:
            return tf.data.Dataset.range(0).map(limits)
        stop = span_of(self.last_step - 1) + 1
        spans = tf.data.Dataset.range(span_of(self.first_step), stop)
        return (spans.repeat() if self.repeats else spans).map(limits)

    def _of_steps(
        self,
        tensors: Any,
        first: tf.Tensor,
        stop: tf.Tensor,
        share: int,
        num_shares: int,
    ) -> Batch:
        """Batches of one size as one, whose every tensor is [steps, ...]."""
        count = stop - first
        indices, num_rows, global_size = self.order.indices_of_several(
            first, count, share, num_shares
        )
        flat = tf.reshape(indices, [-1])
        # Of a single step, if features depend on it: see `_steps_at_once`.
        features, labels = self._read(tensors, flat, first)
        return batch_of_steps(
            first=first,
            share=share,
            num_rows=num_rows,
            global_size=global_size,
            indices=indices,
            features=features,
            labels=labels,
        )


# Enough for what an element of a pipeline costs, whatever is in it, to be divided by
# (docs/performance.md); what is larger would only take longer to come.
_STEPS_AT_ONCE = 32
_BYTES_AT_ONCE = 2**18


def steps_at_once(step_bytes: int) -> int:
    """How many steps are read together, at most.

    Args:
      step_bytes: of the examples of one.
    """
    return min(max(_BYTES_AT_ONCE // max(step_bytes, 1), 1), _STEPS_AT_ONCE)


def batch_of_steps(
    *,
    first: tf.Tensor,
    share: int,
    num_rows: tf.Tensor,
    global_size: tf.Tensor,
    indices: tf.Tensor,
    features: Any,
    labels: Any,
) -> Batch:
    """Batches of one size as one, whose every tensor is [steps, ...].

    Args:
      first: of the steps, int64 scalar.
      share: whose rows they have.
      num_rows: how many rows of each count.
      global_size: examples in each global batch.
      indices: int64 [steps, rows of a step].
      features: tensors [rows of all steps, ...] with a static shape but for their
        number.
      labels: likewise.
    """
    shape = tf.shape(indices)
    count = tf.cast(shape[0], tf.int64)
    same = functools.partial(tf.fill, [count])
    divided = functools.partial(_per_step, shape=shape)
    return Batch(
        step=first + tf.range(count),
        replica=same(tf.constant(share, tf.int64)),
        global_size=same(global_size),
        num_rows=same(num_rows),
        indices=indices,
        features=tf.nest.map_structure(divided, features),
        labels=tf.nest.map_structure(divided, labels),
    )


def _per_step(rows: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """[steps, rows of a step, ...] of [rows of all steps, ...]."""
    inner = tf.shape(rows)[1:]
    divided = tf.reshape(rows, tf.concat([shape, inner], axis=0))
    return tf.ensure_shape(divided, [None, None, *rows.shape[1:]])
