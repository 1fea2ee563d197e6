"""What strategies made of `tf.distribute` replicas have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.base import Batch, ReplicaStep, Shares, Update
from strategies.inner_loop import InnerLoop, Step

OwnShare = Callable[[Any, tf.distribute.ReplicaContext], Batch]
SumOverReplicas = Callable[[tf.distribute.ReplicaContext, Shares], Shares]


def compile_replicated(
    strategy: tf.distribute.Strategy,
    own_share: OwnShare,
    sum_over_replicas: SumOverReplicas,
    replica_step: ReplicaStep,
    update: Update | None,
    after_update: Callable[[Update], None] = lambda update: None,
) -> InnerLoop:
    """An inner loop whose step runs once on every replica of a tf.distribute strategy.

    Args:
      strategy: has the replicas.
      own_share: from what the input gave, and a replica's context, to its rows.
      sum_over_replicas: adds up the shares of all replicas; called on each.
      replica_step: computes one replica's shares.
      update: applies their sum on each replica; None to only add up.
      after_update: called once a step, when all replicas have applied it.
    """

    def sum_shares(replica_step: ReplicaStep, batch: Any) -> Any:
        def on_each_replica() -> Shares:
            context = tf.distribute.get_replica_context()
            return sum_over_replicas(context, replica_step(own_share(batch, context)))

        return strategy.run(on_each_replica)

    def apply(update: Update, summed: Any) -> dict[str, tf.Tensor]:
        def on_each_replica(shares: Shares) -> None:
            update.apply(shares)
            update.count()

        strategy.run(on_each_replica, args=(summed,))
        after_update(update)
        return {}

    def first(summed: Any) -> Shares:
        """The sum on the first local device; all devices hold the same."""
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], summed
        )

    return InnerLoop(Step(sum_shares, apply, first), replica_step, update)


def sum_in_one_process(context: tf.distribute.ReplicaContext, shares: Shares) -> Shares:
    """Adds up every replica's shares, small tensors of a type in one.

    A tensor that goes to another device and back costs its handling, however small: a
    step of a 5-10-2 network on two logical devices took 406 microseconds with each sum
    and gradient by itself, and takes 377 so. Larger ones are handed over without being
    copied, if the device is of the same memory.

    Args:
      context: of the calling replica.
      shares: dense values of any type, and IndexedSlices.
    """
    return _sum_together(context, shares, _own_type, _LARGE_IN_ONE_PROCESS_BYTES)


def sum_in_few_collectives(
    context: tf.distribute.ReplicaContext,
    shares: Shares,
    send_as: tf.DType | None,
    options: tf.distribute.experimental.CommunicationOptions | None = None,
) -> Shares:
    """Adds up every replica's shares in one collective, but large tensors in their own.

    Between processes the number of collectives costs more than their size for all
    but large models: one buffer for gradients and loss took a 5-10-2 network over
    two workers from 2.5 to 1.55 ms a step. What is large can be sent while earlier
    layers still compute, and need not be copied into a buffer and out again: 84 MB of
    gradients over two workers took 3 to 4 % less time so. Sparse gradients are summed
    by themselves, since their length differs between replicas.

    Args:
      context: of the calling replica.
      shares: dense values of any floating type, and IndexedSlices.
      send_as: type of gradients on the wire; None to send them as they are. Sums
        and layer state are never sent with less than single precision.
      options: other than the strategy's own.
    """
    gradients = {id(gradient) for gradient in tf.nest.flatten(shares.gradients)}
    dense = [g.dtype for g in shares.gradients if isinstance(g, tf.Tensor)]
    main = dense[0] if dense else tf.float64

    def wire_type(value: tf.Tensor) -> tf.DType:
        wanted = (send_as if id(value) in gradients else None) or main
        return wanted if value.dtype.is_floating else value.dtype

    return _sum_together(context, shares, wire_type, _LARGE_BYTES, options)


# A collective of a few numbers takes as long as to copy some hundred kilobytes twice.
_LARGE_BYTES = 4 << 20
_LARGE_IN_ONE_PROCESS_BYTES = 64 << 10


def _own_type(value: tf.Tensor) -> tf.DType:
    return value.dtype


def _sum_together(
    context: tf.distribute.ReplicaContext,
    shares: Shares,
    wire_type: Callable[[tf.Tensor], tf.DType],
    large_bytes: int,
    options: tf.distribute.experimental.CommunicationOptions | None = None,
) -> Shares:
    flat = tf.nest.flatten(shares)
    buffers: dict[tuple[tf.DType, int | None], list[int]] = {}
    for index, value in enumerate(flat):
        if isinstance(value, tf.IndexedSlices):
            flat[index] = context.all_reduce(tf.distribute.ReduceOp.SUM, value, options)
        elif value is not None:
            dtype = wire_type(value)
            own = index if _bytes(value, dtype) >= large_bytes else None
            buffers.setdefault((dtype, own), []).append(index)
    for (dtype, _), indices in buffers.items():
        values = [flat[index] for index in indices]
        summed = _sum_buffer(context, values, dtype, options)
        for index, value in zip(indices, summed, strict=True):
            flat[index] = value
    return tf.nest.pack_sequence_as(shares, flat)


def _bytes(value: tf.Tensor, dtype: tf.DType) -> int:
    """Zero if that is not known."""
    return (value.shape.num_elements() or 0) * dtype.size


def sum_by_type(
    context: tf.distribute.ReplicaContext,
    values: Sequence[tf.Tensor],
    options: tf.distribute.experimental.CommunicationOptions | None = None,
) -> list[tf.Tensor]:
    """Adds up every replica's tensors in one collective for each type, unrounded.

    Args:
      context: of the calling replica.
      values: dense, of any types.
      options: other than the strategy's own.
    """
    summed = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values):
        indices = [index for index, v in enumerate(values) if v.dtype == dtype]
        own = [values[index] for index in indices]
        totals = _sum_buffer(context, own, dtype, options)
        for index, total in zip(indices, totals, strict=True):
            summed[index] = total
    return summed


def _sum_buffer(
    context: tf.distribute.ReplicaContext,
    values: list[tf.Tensor],
    dtype: tf.DType,
    options: tf.distribute.experimental.CommunicationOptions | None,
) -> list[tf.Tensor]:
    """Sums tensors over replicas through one vector of the given type."""
    if len(values) == 1:
        (value,) = values
        summed = context.all_reduce(
            tf.distribute.ReduceOp.SUM, tf.cast(value, dtype), options
        )
        return [tf.cast(summed, value.dtype)]
    vector = tf.concat([tf.reshape(tf.cast(v, dtype), [-1]) for v in values], axis=0)
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, vector, options)
    parts = tf.split(summed, [tf.size(value) for value in values])
    return [
        tf.cast(tf.reshape(part, tf.shape(value)), value.dtype)
        for part, value in zip(parts, values, strict=True)
    ]
