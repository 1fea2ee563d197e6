"""Rows of replicas that layers with `synchronized=True` sum in the forward pass."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from strategies.common.private_apis.models import synchronized_moments_of
from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs
from strategies.inner_loop.updates_in_turn import UpdatesInTurn
from trainers.model.random_numbers.per_thread import PerThread


def without_empty_shards(step: ReplicaFunction) -> ReplicaFunction:
    """Returns a step in which replicas without examples add nothing to such sums.

    An empty shard has a row to compute on (`strategies.inner_loop.sharding`). Its
    weight in the loss is zero, but a layer that sums over replicas would count it.

    Args:
      step: Step of one replica.
    """
    if isinstance(step, UpdatesInTurn):
        compute = step.compute
        return dataclasses.replace(
            step, compute=lambda *given: without_empty_shards(compute(*given))
        )
    num_rows: PerThread[tf.Tensor] = PerThread(lambda: synchronized_moments_of(counted))

    def counted(values: tf.Tensor) -> tf.Tensor:
        own = num_rows.present()
        if own is None:
            return values
        # A layer may have merged axes, so that an example has several rows.
        return values[: tf.where(own > 0, tf.shape(values, tf.int64)[0], 0)]

    def on_replica(batch: Batch) -> ReplicaOutputs:
        with num_rows.having(batch.num_rows):
            return step(batch)

    return on_replica
