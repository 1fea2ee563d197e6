"""Batches larger than memory: a replica's part in micro-batches, one after another.

The sum of their shares is the replica's share, and goes on as if computed at once: one
sum over replicas, one update. Only one micro-batch's activations are held at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis import flat_layers
from strategies.common.types import Batch, ReplicaStep, Shares
from strategies.inner_loop.reduction import sum_shares
from strategies.inner_loop.sharding import take_micro_batch
from trainers.model.layer_state import sums_over_replicas


class Accumulable(Protocol):
    """A replica's step that can be taken in parts."""

    def __call__(self, batch: Batch) -> Shares:
        """The shares of all of a replica's rows."""

    def at_present_values(self) -> ReplicaStep:
        """A step for parts of a batch, all at the weights of now."""


class Accumulation:
    """Adds up the shares of a replica's micro-batches. Satisfies `ReplicaStep`."""

    def __init__(self, step: Accumulable, num_micro_batches: int):
        """Traces nothing yet.

        Args:
          step: of one micro-batch.
          num_micro_batches: into how many a replica's rows are divided. If there are
            fewer rows, each is a micro-batch of its own.
        """
        self._step = step
        self._num_micro_batches = num_micro_batches

    def __call__(self, batch: Batch) -> Shares:
        if self._num_micro_batches == 1:
            return self._step(batch)
        step = self._step.at_present_values()
        count = tf.clip_by_value(batch.num_rows, 1, self._num_micro_batches)

        def shares_of(index: tf.Tensor) -> Shares:
            part = take_micro_batch(batch, index, count, self._num_micro_batches)
            return step(part)

        # What a sum consists of, such as which variables have a gradient, is known
        # once a step has been traced. So the first stands before the loop.
        with tf.name_scope("first_micro_batch"):
            first = shares_of(tf.zeros([], tf.int64))
        with tf.name_scope("further_micro_batches"):
            return _add_further(first, shares_of, count)


def _add_further(first: Shares, shares_of: Any, count: tf.Tensor) -> Shares:
    """Adds the shares of micro-batches 1 to count - 1, never two at a time."""

    def body(index: tf.Tensor, *summed: Any) -> tuple[Any, ...]:
        total = sum_shares([_unpack(summed, first), shares_of(index)])
        return index + 1, *_pack(total)

    # A loop begins as soon as it has its counter, which here must be after the first.
    with tf.control_dependencies(tf.nest.flatten(_pack(first), expand_composites=True)):
        begin = tf.ones([], tf.int64)
    _, *summed = tf.while_loop(
        lambda index, *_: index < count,
        body,
        [begin, *_pack(first)],
        [tf.TensorShape([]), *map(_any_number_of_rows, _pack(first))],
        parallel_iterations=1,
    )
    return _unpack(summed, first)


def _pack(shares: Shares) -> list[Any]:
    """All tensors and IndexedSlices, which is what a loop can carry."""
    return [value for value in tf.nest.flatten(shares) if value is not None]


def _unpack(values: Sequence[Any], like: Shares) -> Shares:
    present = iter(values)
    flat = [None if v is None else next(present) for v in tf.nest.flatten(like)]
    return tf.nest.pack_sequence_as(like, flat)


def _any_number_of_rows(value: Any) -> tf.TensorShape:
    """The shape that a sum keeps. Sparse gradients are added by appending rows."""
    if isinstance(value, tf.IndexedSlices):
        return tf.TensorShape([None, *value.values.shape[1:]])
    return value.shape


def check_accumulable(model: keras.Model, num_micro_batches: int) -> None:
    """Refuses layers whose replicas talk to each other while they compute.

    Raises:
      UsageError: there is one; TensorFlow cannot do that inside a loop.
    """
    for layer in flat_layers(model) if num_micro_batches > 1 else ():
        if sums_over_replicas(layer):
            raise UsageError(
                f"--gradient_accumulation_steps={num_micro_batches} does not fit layer "
                f"{layer.name!r}, whose synchronized=True normalizes over all replicas "
                "at once: leave the one or the other out."
            )
