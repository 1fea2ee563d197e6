"""Training loop and all-reduce of `tf.distribute` replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs, Update
from strategies.inner_loop.grouping import (
    compute_in_order,
    grouped,
    size_with_parts_for_all,
)
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.sparse_rows import sum_sparse
from strategies.inner_loop.step import Step

OwnShard = Callable[[Any, tf.distribute.ReplicaContext], Batch]
SumOverReplicas = Callable[
    [tf.distribute.ReplicaContext, ReplicaOutputs], ReplicaOutputs
]


def compile_replicated(
    strategy: tf.distribute.Strategy,
    own_shard: OwnShard,
    sum_over_replicas: SumOverReplicas,
    replica_step: ReplicaFunction,
    update: Update | None,
    after_update: Callable[[Update], None] = lambda update: None,
) -> InnerLoop:
    """Returns an inner loop with a step on every replica of a tf.distribute strategy.

    Args:
      strategy: Strategy with the replicas.
      own_shard: Function from the input and a replica's context to the replica's shard.
      sum_over_replicas: Function that sums the outputs of all replicas, called on each.
      replica_step: Function that computes the outputs of one replica.
      update: Update that applies the sum on each replica; None to only sum.
      after_update: Function called once a step, after all replicas applied the update.
    """

    def all_reduce_gradients(replica_step: ReplicaFunction, batch: Any) -> Any:
        def on_each_replica() -> ReplicaOutputs:
            context = tf.distribute.get_replica_context()
            return sum_over_replicas(context, replica_step(own_shard(batch, context)))

        return strategy.run(on_each_replica)

    def apply(update: Update, summed: Any) -> dict[str, tf.Tensor]:
        def on_each_replica(outputs: ReplicaOutputs) -> None:
            update.apply(outputs)
            update.increment_step()

        strategy.run(on_each_replica, args=(summed,))
        after_update(update)
        return {}

    def first(summed: Any) -> ReplicaOutputs:
        """Returns the sum on the first local device; all devices hold the same sum."""
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], summed
        )

    return InnerLoop(Step(all_reduce_gradients, apply, first), replica_step, update)


def all_reduce_local(
    context: tf.distribute.ReplicaContext, outputs: ReplicaOutputs
) -> ReplicaOutputs:
    """Returns the sum of all replicas' outputs, with small tensors of a type packed.

    Args:
      context: Context of the calling replica.
      outputs: Dense values of any type, and IndexedSlices.
    """
    gradients = [
        context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for gradient in outputs.gradients
    ]
    outputs = outputs._replace(gradients=gradients)
    return _sum_dense(context, outputs, _own_type, _LARGE_IN_ONE_PROCESS_BYTES)


def all_reduce_packed(
    context: tf.distribute.ReplicaContext,
    outputs: ReplicaOutputs,
    send_as: tf.DType | None,
) -> ReplicaOutputs:
    """Returns the sum of all replicas' outputs, in the order of the backward pass.

    Between processes the number of collectives costs more than their size for all
    but large models: one buffer for gradients and loss took a 5-10-2 network over
    two workers from 2.5 to 1.55 ms a step. Buckets of gradients can be sent while
    earlier layers still compute, and large ones need not be copied into a buffer and
    out again. The rows of sparse gradients are gathered, since their number differs
    between replicas.

    Args:
      context: Context of the calling replica.
      outputs: Dense values of any floating type, and IndexedSlices.
      send_as: Type of gradients on the wire; None to keep their type. Sums and layer
        state are never sent with less than single precision.
    """
    # By identity: a tensor has no other mark of being a gradient once flattened.
    gradients = {id(gradient) for gradient in tf.nest.flatten(outputs.gradients)}
    dense = [g.dtype for g in outputs.gradients if isinstance(g, tf.Tensor)]
    # A model may have layers of several types.
    types = [tf.float32, *dense] if dense else [tf.float64]
    others = max(types, key=lambda dtype: dtype.size)

    def wire_type(value: tf.Tensor) -> tf.DType:
        if not value.dtype.is_floating:
            return value.dtype
        return (send_as or value.dtype) if id(value) in gradients else others

    outputs = _sum_buckets(context, outputs, wire_type)
    # Last, because tables of embeddings are in the first layers.
    return outputs._replace(gradients=sum_sparse(context, outputs.gradients))


# A gradient of this size or larger is sent by itself, and smaller ones in buckets of at
# least this size. A collective of a few numbers takes as long as to copy some hundred
# kilobytes twice.
BUCKET_BYTES = 1 << 20
_LARGE_IN_ONE_PROCESS_BYTES = 64 << 10


def _own_type(value: tf.Tensor) -> tf.DType:
    return value.dtype


def _sum_dense(
    context: tf.distribute.ReplicaContext,
    outputs: ReplicaOutputs,
    wire_type: Callable[[tf.Tensor], tf.DType],
    large_bytes: int,
) -> ReplicaOutputs:
    """Returns the outputs summed over replicas, except their sparse gradients."""
    flat = tf.nest.flatten(outputs)
    # Positions of the values of each buffer, by wire type. A large value has a separate
    # buffer, with its position in the key.
    buffers: dict[tuple[tf.DType, int | None], list[int]] = {}
    for index, value in enumerate(flat):
        if isinstance(value, tf.Tensor):
            dtype = wire_type(value)
            own = index if _bytes(value, dtype) >= large_bytes else None
            buffers.setdefault((dtype, own), []).append(index)
    for (dtype, _), indices in buffers.items():
        values = [flat[index] for index in indices]
        summed = _sum_buffer(context, values, dtype)
        for index, value in zip(indices, summed, strict=True):
            flat[index] = value
    return tf.nest.pack_sequence_as(outputs, flat)


def _sum_buckets(
    context: tf.distribute.ReplicaContext,
    outputs: ReplicaOutputs,
    wire_type: Callable[[tf.Tensor], tf.DType],
) -> ReplicaOutputs:
    """Returns the outputs summed over replicas in buckets, except sparse gradients.

    TensorFlow starts the collectives of a device one after the other, in the order of
    the program: first the bucket that is complete first.
    """
    flat = tf.nest.flatten(outputs)
    dense = [i for i, value in enumerate(flat) if isinstance(value, tf.Tensor)]
    kinds = [
        (wire_type(flat[index]), flat[index].shape.num_elements() or 0)
        for index in dense
    ]
    buckets = grouped(kinds, BUCKET_BYTES)
    packed = [
        _pack([flat[dense[i]] for i in bucket], kinds[bucket[0]][0], context)
        for bucket in buckets
    ]
    compute_in_order([each.vector for each in packed])
    for bucket, each in zip(buckets, packed, strict=True):
        summed = _sum_packed(context, each, is_ring=True)
        for position, value in zip(bucket, summed, strict=True):
            flat[dense[position]] = value
    return tf.nest.pack_sequence_as(outputs, flat)


def _bytes(value: tf.Tensor, dtype: tf.DType) -> int:
    """Returns the bytes of a tensor on the wire; zero if its shape is unknown."""
    return (value.shape.num_elements() or 0) * dtype.size


def sum_by_type(
    context: tf.distribute.ReplicaContext,
    values: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Returns the sums of all replicas' tensors by one collective for each type.

    No value is converted to another type.

    Args:
      context: Context of the calling replica.
      values: Dense tensors of any types.
    """
    summed = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values):
        indices = [index for index, v in enumerate(values) if v.dtype == dtype]
        own = [values[index] for index in indices]
        totals = _sum_buffer(context, own, dtype, is_ring=True)
        for index, total in zip(indices, totals, strict=True):
            summed[index] = total
    return summed


def _sum_buffer(
    context: tf.distribute.ReplicaContext,
    values: Sequence[tf.Tensor],
    dtype: tf.DType,
    *,
    is_ring: bool = False,
) -> list[tf.Tensor]:
    """Sums tensors over replicas through one vector of the given type.

    Args:
      context: Context of the calling replica.
      values: Dense tensors.
      dtype: Type of the vector.
      is_ring: True if the sum may be of several processes.
    """
    packed = _pack(values, dtype, context if is_ring else None)
    return _sum_packed(context, packed, is_ring=is_ring)


class _Packed(NamedTuple):
    """Tensors that are sent together.

    Attributes:
      values: The tensors.
      vector: One vector of all of them, or a single tensor in its own shape.
      sizes: Number of elements of each tensor and of the zeros behind them; empty for a
        single tensor in its own shape.
    """

    values: Sequence[tf.Tensor]
    vector: tf.Tensor
    sizes: Sequence[tf.Tensor | int]


def _pack(
    values: Sequence[tf.Tensor],
    dtype: tf.DType,
    ring: tf.distribute.ReplicaContext | None,
) -> _Packed:
    """Packs tensors.

    Args:
      values: Dense tensors.
      dtype: Type of the vector.
      ring: Context of the calling replica; None if all replicas are in one process.
    """
    missing = 0
    if ring is not None:
        size = sum(value.shape.num_elements() or 0 for value in values)
        replicas = ring.num_replicas_in_sync
        missing = size_with_parts_for_all(size, dtype.size, replicas) - size
    # A single tensor keeps its shape: a copy into a vector would gain nothing.
    if len(values) == 1 and not missing:
        return _Packed(values, tf.cast(values[0], dtype), [])
    vectors = [tf.reshape(tf.cast(value, dtype), [-1]) for value in values]
    sizes = [tf.size(value) for value in values]
    if missing:
        vectors.append(tf.zeros([missing], dtype))
        sizes.append(missing)
    return _Packed(values, tf.concat(vectors, axis=0), sizes)


def _sum_packed(
    context: tf.distribute.ReplicaContext, packed: _Packed, *, is_ring: bool
) -> list[tf.Tensor]:
    """Returns the sums of packed tensors over all replicas, in their own shapes."""
    vector = packed.vector
    if is_ring:
        # An operation that costs nothing in between: see `compute_in_order`.
        vector = tf.expand_dims(vector, 0)
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, vector)
    if is_ring:
        summed = tf.squeeze(summed, 0)
    if not packed.sizes:
        return [tf.cast(summed, packed.values[0].dtype)]
    parts = tf.split(summed, packed.sizes)[: len(packed.values)]
    return [
        tf.cast(tf.reshape(part, tf.shape(value)), value.dtype)
        for part, value in zip(parts, packed.values, strict=True)
    ]
