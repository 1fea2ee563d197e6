"""All-reduce of replica outputs, in few collectives."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.grouping import (
    compute_in_order,
    grouped,
    size_with_parts_for_all,
)
from strategies.inner_loop.sparse_rows import sum_sparse

SumOverReplicas = Callable[
    [tf.distribute.ReplicaContext, ReplicaOutputs], ReplicaOutputs
]


def all_reduce_local(
    context: tf.distribute.ReplicaContext, outputs: ReplicaOutputs
) -> ReplicaOutputs:
    """Returns the sum of all replicas' outputs, with small tensors of a type packed."""
    gradients = [
        context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for gradient in outputs.gradients
    ]
    outputs = outputs._replace(gradients=gradients)
    wire_types = _types_of(outputs, lambda dtype: dtype)
    return _sum_dense(context, outputs, wire_types, _by_type, is_ring=False)


def all_reduce_packed(
    context: tf.distribute.ReplicaContext,
    outputs: ReplicaOutputs,
    send_as: tf.DType | None = None,
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
      outputs: Dense values of any type, and IndexedSlices.
      send_as: Type of gradients on the wire; None to keep their type. Sums and layer
        state are never sent with less than single precision, nor layer state with less
        than its type.
    """
    dense = [g.dtype for g in outputs.gradients if isinstance(g, tf.Tensor)]
    # A model may have layers of several types.
    types = [tf.float32, *dense] if dense else [tf.float64]
    others = _widest(*types)
    wire_types = ReplicaOutputs(
        gradients=_types_of(outputs.gradients, lambda dtype: send_as or dtype),
        state=_types_of(outputs.state, lambda dtype: _widest(others, dtype)),
        # Sums are float64 to count exactly on one replica. In a separate buffer they
        # would cost every step another collective.
        sums=_types_of(outputs.sums, lambda dtype: others),
    )
    outputs = _sum_dense(context, outputs, wire_types, grouped, is_ring=True)
    # Last, because tables of embeddings are in the first layers.
    return outputs._replace(gradients=sum_sparse(context, outputs.gradients))


def summable_type(dtype: tf.DType) -> tf.DType:
    """Returns the type in which collectives sum tensors of a type exactly.

    Collectives sum signed integers of 4 and 8 bytes, and no bools. The first replica
    sends integers and bools, to which all others add zero.
    """
    if dtype.is_floating or dtype in (tf.int32, tf.int64):
        return dtype
    is_small = dtype.is_bool or dtype.size < tf.int32.size
    return tf.int32 if is_small else tf.int64


def _types_of(values: Any, of_floating: Callable[[tf.DType], tf.DType]) -> Any:
    """Returns the type in which each dense tensor is sent, in the same structure."""

    def type_of(value: Any) -> tf.DType | None:
        if not isinstance(value, tf.Tensor):
            return None
        dtype = value.dtype
        return of_floating(dtype) if dtype.is_floating else summable_type(dtype)

    return tf.nest.map_structure(type_of, values)


def _widest(*types: tf.DType) -> tf.DType:
    return max(types, key=lambda dtype: dtype.size)


_LARGE_IN_ONE_PROCESS_BYTES = 64 << 10


def _by_type(kinds: Sequence[tuple[tf.DType, int]]) -> list[list[int]]:
    """Returns the positions of tensors by type; a large one is by itself."""
    buffers: dict[tuple[tf.DType, int | None], list[int]] = {}
    for index, (dtype, size) in enumerate(kinds):
        is_large = size * dtype.size >= _LARGE_IN_ONE_PROCESS_BYTES
        buffers.setdefault((dtype, index if is_large else None), []).append(index)
    return list(buffers.values())


def _sum_dense(
    context: tf.distribute.ReplicaContext,
    outputs: ReplicaOutputs,
    wire_types: ReplicaOutputs,
    groups_of: Callable[[Sequence[tuple[tf.DType, int]]], list[list[int]]],
    *,
    is_ring: bool,
) -> ReplicaOutputs:
    """Returns the outputs summed over replicas, except sparse gradients.

    TensorFlow starts the collectives of a device one after the other, in the order of
    the program, which begins with the group that is complete first.

    Args:
      context: Context of the calling replica.
      outputs: Outputs of the calling replica.
      wire_types: Type in which each tensor is sent, in the structure of the outputs.
      groups_of: Function from the type and number of elements of each tensor to the
        positions of each group. The number is zero if unknown.
      is_ring: True if the sum may be of several processes.
    """
    flat, types = tf.nest.flatten(outputs), tf.nest.flatten(wire_types)
    dense = [i for i, value in enumerate(flat) if isinstance(value, tf.Tensor)]
    kinds = [(types[index], flat[index].shape.num_elements() or 0) for index in dense]
    groups = groups_of(kinds)
    packed = [
        _pack(context, [flat[dense[i]] for i in group], kinds[group[0]][0], is_ring)
        for group in groups
    ]
    if is_ring:
        compute_in_order([each.vector for each in packed])
    for group, each in zip(groups, packed, strict=True):
        summed = _sum_packed(context, each, is_ring)
        for position, value in zip(group, summed, strict=True):
            flat[dense[position]] = value
    return tf.nest.pack_sequence_as(outputs, flat)


def sum_by_type(
    context: tf.distribute.ReplicaContext, values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the sums of all replicas' tensors by one collective for each type.

    The sums are exact but for rounding in the tensor's type.
    """
    summed = list(values)
    types = [summable_type(value.dtype) for value in values]
    for dtype in dict.fromkeys(types):
        indices = [index for index, wire in enumerate(types) if wire == dtype]
        packed = _pack(context, [values[i] for i in indices], dtype, is_ring=True)
        totals = _sum_packed(context, packed, is_ring=True)
        for index, total in zip(indices, totals, strict=True):
            summed[index] = total
    return summed


class _Packed(NamedTuple):
    """Tensors that are sent together.

    Attributes:
      values: The tensors.
      vector: One vector of all of them, or a single tensor in its own shape.
      unpack: Function from the sum of `vector` to the sums of the tensors, in the type
        of `vector`.
    """

    values: Sequence[tf.Tensor]
    vector: tf.Tensor
    unpack: Callable[[tf.Tensor], Sequence[tf.Tensor]]


def _pack(
    context: tf.distribute.ReplicaContext,
    values: Sequence[tf.Tensor],
    dtype: tf.DType,
    is_ring: bool,
) -> _Packed:
    """Packs dense tensors into a vector of a type."""
    missing = 0
    if is_ring:
        size = sum(value.shape.num_elements() or 0 for value in values)
        replicas = context.num_replicas_in_sync
        missing = size_with_parts_for_all(size, dtype.size, replicas) - size
    cast = [tf.cast(value, dtype) for value in values]
    # A single tensor keeps its shape: a copy into a vector would gain nothing.
    if len(values) == 1 and not missing:
        return _Packed(values, cast[0], lambda summed: [summed])
    # Scalars need no reshape.
    if all(value.shape.rank == 0 for value in values):
        vector = tf.stack([*cast, *[tf.zeros([], dtype)] * missing])
        return _Packed(values, vector, lambda summed: tf.unstack(summed)[: len(values)])
    vectors = [tf.reshape(value, [-1]) for value in cast]
    sizes = [tf.size(value) for value in values]
    if missing:
        vectors.append(tf.zeros([missing], dtype))
        sizes.append(missing)

    def unpack(summed: tf.Tensor) -> list[tf.Tensor]:
        parts = tf.split(summed, sizes)[: len(values)]
        return [
            tf.reshape(part, tf.shape(value))
            for part, value in zip(parts, values, strict=True)
        ]

    return _Packed(values, tf.concat(vectors, axis=0), unpack)


def _sum_dense_tensor(
    context: tf.distribute.ReplicaContext, value: tf.Tensor
) -> tf.Tensor:
    """Returns the sum over all replicas, as `ReplicaContext.all_reduce`, on each.

    TensorFlow keeps the gradient of `all_reduce` for ever, with the graph of each trace
    and its variables (tensorflow/python/ops/custom_gradient.py,
    `_graph_mode_decorator`): with a model of 8 MiB, each `fit` of a program took 70 MiB
    more. Nobody differentiates this sum.
    """

    def reduce(strategy: tf.distribute.Strategy, value: Any) -> Any:
        # A single replica has a tensor.
        to = value.device if isinstance(value, tf.Tensor) else value
        sums = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [(value, to)]
        )
        return sums[0]

    return context.merge_call(reduce, args=(value,))


def _sum_packed(
    context: tf.distribute.ReplicaContext, packed: _Packed, is_ring: bool
) -> list[tf.Tensor]:
    """Returns the sums of packed tensors over all replicas, in their own shapes."""
    vector = packed.vector
    if is_ring:
        # An operation that costs nothing in between: see `compute_in_order`.
        vector = tf.expand_dims(vector, 0)
    summed = _sum_dense_tensor(context, vector)
    if is_ring:
        summed = tf.squeeze(summed, 0)
    return [
        tf.cast(total, value.dtype)
        for total, value in zip(packed.unpack(summed), packed.values, strict=True)
    ]
