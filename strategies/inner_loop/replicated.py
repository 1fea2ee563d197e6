"""Inner loop of `tf.distribute` replicas."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs, Update
from strategies.inner_loop.all_reduce import SumOverReplicas
from strategies.inner_loop.loop import InnerLoop
from strategies.inner_loop.step import Step

OwnShard = Callable[[Any, tf.distribute.ReplicaContext], Batch]


def compile_replicated(
    strategy: tf.distribute.Strategy,
    own_shard: OwnShard,
    sum_over_replicas: SumOverReplicas,
    replica_step: ReplicaFunction,
    update: Update | None,
    *,
    after_update: Callable[[], None] = lambda: None,
    before_call: Callable[[], None] = lambda: None,
    after_call: Callable[[], None] = lambda: None,
) -> InnerLoop:
    """Returns an inner loop with a step on every replica of a tf.distribute strategy.

    Args:
      strategy: Strategy with the replicas.
      own_shard: Function from the input and a replica's context to the replica's shard.
      sum_over_replicas: Function that sums the outputs of all replicas, called on each.
      replica_step: Function that computes the outputs of one replica.
      update: Update that applies the sum on each replica; None to only sum.
      after_update: Function called once a step, after all replicas applied the update.
      before_call: Function called before the steps of each call of the loop.
      after_call: Function called after them.
    """

    def all_reduce_gradients(replica_step: ReplicaFunction, batch: Any) -> Any:
        def on_each_replica() -> ReplicaOutputs:
            context = tf.distribute.get_replica_context()
            return sum_over_replicas(context, replica_step(own_shard(batch, context)))

        return strategy.run(on_each_replica)

    def apply(update: Update, summed: Any) -> None:
        def on_each_replica(outputs: ReplicaOutputs) -> None:
            update.apply(outputs)
            update.increment_step()

        strategy.run(on_each_replica, args=(summed,))
        after_update()

    step = Step(
        all_reduce_gradients,
        apply,
        # All replicas have the same sum.
        functools.partial(on_first_replica, strategy),
        before_call=before_call,
        after_call=after_call,
    )
    return InnerLoop(step, replica_step, update)


def on_first_replica(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Returns what the first replica of this process has, as plain tensors."""
    return tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], values
    )
