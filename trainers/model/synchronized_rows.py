"""Rows of replicas that layers with `synchronized=True` sum in the forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.common.private_apis.models import synchronized_moments_of
from strategies.common.types import Batch, ReplicaFunction
from strategies.inner_loop.totals import WithTotals
from strategies.inner_loop.updates_in_turn import UpdatesInTurn
from trainers.model.random_numbers.per_thread import PerThread


def without_empty_shards(step: ReplicaFunction) -> ReplicaFunction:
    """Returns a step in which replicas without examples add nothing to such sums.

    An empty shard has a row to compute on (`strategies.inner_loop.sharding`). Its
    weight in the loss is zero, but a layer that sums over replicas would count it.

    Args:
      step: Step of one replica.
    """
    num_rows: PerThread[tf.Tensor] = PerThread(lambda: synchronized_moments_of(counted))

    def counted(values: tf.Tensor) -> tf.Tensor:
        own = num_rows.present()
        if own is None:
            return values
        # A layer may have merged axes, so that an example has several rows.
        return values[: tf.where(own > 0, tf.shape(values, tf.int64)[0], 0)]

    def on_replica(function: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        def compute(batch: Batch) -> Any:
            with num_rows.having(batch.num_rows):
                return function(batch)

        return compute

    # The inner loop looks at the type of a step: see `apply_earlier`, `totals_of`.
    if isinstance(step, UpdatesInTurn):
        of_pass = step.compute
        return dataclasses.replace(
            step, compute=lambda index, former: on_replica(of_pass(index, former))
        )
    if isinstance(step, WithTotals):
        return dataclasses.replace(
            step, step=on_replica(step.step), count=on_replica(step.count)
        )
    return on_replica(step)
