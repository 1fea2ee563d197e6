"""Gradient accumulation: a replica's shard as consecutive micro-batches.

The sum of the micro-batches' outputs is the replica's output. Everything after it is
unchanged: one all-reduce, one update. Only one micro-batch's activations are in memory
at a time.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.models import flat_layers
from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs
from strategies.inner_loop.reduction import sum_outputs
from strategies.inner_loop.sharding import take_micro_batch
from trainers.model.layer_state import sums_over_replicas


class Accumulable(Protocol):
    """Replica step that can compute parts of a shard."""

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        """Returns the outputs for all rows of a replica."""

    def with_current_weights(self) -> ReplicaFunction:
        """Returns a step bound to the current weights, for several micro-batches."""


class Accumulation:
    """Sum of the outputs of a replica's micro-batches. Satisfies `ReplicaFunction`."""

    def __init__(self, step: Accumulable, num_microbatches: int):
        """Stores the step; traces nothing.

        A shard with fewer rows than micro-batches has one for each row.
        """
        self._step = step
        self._num_microbatches = num_microbatches

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        step = self._step.with_current_weights()
        # At least one micro-batch, so that a replica without rows contributes zeros of
        # the right shapes.
        count = tf.clip_by_value(batch.num_rows, 1, self._num_microbatches)

        def outputs_of(index: tf.Tensor) -> ReplicaOutputs:
            part = take_micro_batch(batch, index, count, self._num_microbatches)
            return step(part)

        # The first micro-batch is computed before the loop: tracing it reveals the
        # structure of the outputs, such as which variables have a gradient.
        with tf.name_scope("first_micro_batch"):
            first = outputs_of(tf.zeros([], tf.int64))
        with tf.name_scope("further_micro_batches"):
            return _add_further(first, outputs_of, count)


def _add_further(
    first: ReplicaOutputs, outputs_of: Any, count: tf.Tensor
) -> ReplicaOutputs:
    """Adds the outputs of micro-batches 1 to count - 1, one at a time."""

    def body(index: tf.Tensor, *summed: Any) -> tuple[Any, ...]:
        total = sum_outputs([_unpack(summed, first), outputs_of(index)])
        return index + 1, *_pack(total)

    # A loop starts as soon as its counter is ready. The counter depends on the first
    # micro-batch, so that the activations of two micro-batches are never in memory
    # together.
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


def _pack(outputs: ReplicaOutputs) -> list[Any]:
    """Returns the tensors and IndexedSlices of replica outputs, without None."""
    # tf.while_loop cannot carry None.
    return [value for value in tf.nest.flatten(outputs) if value is not None]


def _unpack(values: Sequence[Any], like: ReplicaOutputs) -> ReplicaOutputs:
    present = iter(values)
    flat = [
        None if v is None else _with_known_shape(next(present), v)
        for v in tf.nest.flatten(like)
    ]
    return tf.nest.pack_sequence_as(like, flat)


def _with_known_shape(value: Any, like: Any) -> Any:
    # A tf.while_loop loses the size of a sparse gradient's table, which a message to a
    # parameter server needs.
    if not isinstance(value, tf.IndexedSlices):
        return value
    return tf.IndexedSlices(value.values, value.indices, like.dense_shape)


def _any_number_of_rows(value: Any) -> tf.TensorShape:
    """Returns the shape of a summed gradient; unknown rows if it is sparse."""
    if isinstance(value, tf.IndexedSlices):
        # Sparse gradients are summed by concatenating their rows.
        return tf.TensorShape([None, *value.values.shape[1:]])
    return value.shape


def check_accumulable(model: keras.Model, num_microbatches: int) -> None:
    """Rejects layers whose replicas communicate within the forward pass.

    TensorFlow cannot run their collectives inside a loop. A single micro-batch needs
    none.
    """
    if num_microbatches == 1:
        return
    for layer in flat_layers(model):
        if sums_over_replicas(layer):
            raise UsageError(
                f"--gradient_accumulation_steps={num_microbatches} does not fit layer "
                f"{layer.name!r}, whose synchronized=True normalizes over all replicas "
                "at once: leave the one or the other out."
            )
