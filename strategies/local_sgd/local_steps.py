"""Local steps of replicas on separate copies of the weights."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from strategies.common.types import (
    Batch,
    ReplicaFunction,
    ReplicaOutputs,
)
from strategies.inner_loop.reduction import scaled, with_own_totals


def local_step(replica_step: ReplicaFunction, num_replicas: int) -> ReplicaFunction:
    """Returns a replica step that treats the replica's shard as the global batch.

    Gradients are means over the shard. They are weighted so that their mean over
    replicas equals the mean over the global batch, even if shards differ in size.
    """

    def step(batch: Batch) -> ReplicaOutputs:
        # An empty shard still carries one row, which belongs to another shard. The step
        # computes on this row; `part` weighs the gradients by zero, `counts` the sums.
        own = tf.maximum(batch.num_rows, 1)
        outputs = replica_step(batch._replace(num_rows=own, global_size=own))
        part = batch.num_rows / batch.global_size
        counts = tf.cast(batch.num_rows > 0, tf.float64)
        return ReplicaOutputs(
            gradients=[
                scaled(gradient, num_replicas * part) for gradient in outputs.gradients
            ],
            state=outputs.state,
            sums={name: counts * value for name, value in outputs.sums.items()},
        )

    return step


def sum_what_is_reported(
    outputs: ReplicaOutputs,
    all_reduce_gradients: Callable[[ReplicaOutputs], ReplicaOutputs],
) -> ReplicaOutputs:
    """Sums losses and metrics, and leaves a replica its own gradients and state.

    Args:
      outputs: Outputs of one replica.
      all_reduce_gradients: Function that sums the outputs of all replicas, called on
        each.
    """
    # Integer layer state cannot be averaged. As in every strategy, all replicas take
    # the value of the first replica: the other replicas contribute zero.
    own = tf.nest.flatten(outputs.state)
    whole = [None if value.dtype.is_floating else value for value in own]
    sums = with_own_totals(outputs).sums
    summed = all_reduce_gradients(ReplicaOutputs(gradients=[], state=whole, sums=sums))
    state = [
        value if total is None else total
        for value, total in zip(own, summed.state, strict=True)
    ]
    return outputs._replace(
        state=tf.nest.pack_sequence_as(outputs.state, state), sums=summed.sums
    )
