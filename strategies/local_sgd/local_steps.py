"""Local steps of replicas on separate copies of the weights."""

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs
from strategies.inner_loop.all_reduce import SumOverReplicas
from strategies.inner_loop.reduction import scaled, with_own_finite_checks
from strategies.inner_loop.totals import WithTotals


def local_step(replica_step: ReplicaFunction, num_replicas: int) -> ReplicaFunction:
    """Returns a replica step for a replica that applies its gradients by itself.

    The mean of the gradients over replicas is the gradient of the global batch, even if
    shards differ in size. Layer state is that of the replica's own rows.
    """

    def step(batch: Batch) -> ReplicaOutputs:
        # An empty shard has layer state, too: that of the row that it carries.
        own = tf.maximum(batch.num_rows, 1)
        outputs = replica_step(batch._replace(state_size=own))
        # Each replica's gradients are its part of a sum over replicas.
        factor = tf.constant(num_replicas)
        return outputs._replace(
            gradients=[scaled(gradient, factor) for gradient in outputs.gradients]
        )

    if isinstance(replica_step, WithTotals):
        return WithTotals(step, replica_step.count)
    return step


def sum_reported(
    all_reduce: SumOverReplicas,
    context: tf.distribute.ReplicaContext,
    outputs: ReplicaOutputs,
) -> ReplicaOutputs:
    """Sums losses and metrics, and leaves a replica its own gradients and state."""
    # Integer layer state cannot be averaged. As in every strategy, all replicas take
    # the value of the first replica: the other replicas contribute zero.
    own = tf.nest.flatten(outputs.state)
    whole = [None if value.dtype.is_floating else value for value in own]
    # A pass that only counts (`WithTotals`) has no gradients to check.
    sums = with_own_finite_checks(outputs).sums if outputs.gradients else outputs.sums
    summed = all_reduce(context, ReplicaOutputs([], state=whole, sums=sums))
    state = [
        value if total is None else total
        for value, total in zip(own, summed.state, strict=True)
    ]
    return outputs._replace(
        state=tf.nest.pack_sequence_as(outputs.state, state), sums=summed.sums
    )
