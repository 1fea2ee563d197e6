"""Totals over a global batch that a replica step needs before it computes its loss.

The mean of a loss with a mask divides by the number of values that count in the whole
global batch. A replica knows only the number in its shard.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.common.types import Batch, ReplicaFunction, ReplicaOutputs


@dataclasses.dataclass(frozen=True, slots=True)
class WithTotals:
    """A replica step with a first pass over its rows. Satisfies `ReplicaFunction`.

    Attributes:
      step: Step that reads `Batch.totals`.
      count: Function that computes the totals of the rows of a batch, scalars by name.
    """

    step: ReplicaFunction
    count: Callable[[Batch], Mapping[str, tf.Tensor]]

    def __call__(self, batch: Batch) -> ReplicaOutputs:
        if not batch.totals:
            # The strategy divides no batch: these rows are all.
            batch = batch._replace(totals=dict(self.count(batch)))
        return self.step(batch)

    def count_rows(self, batch: Batch) -> ReplicaOutputs:
        """Returns the totals of a replica's rows, to be summed over replicas."""
        return ReplicaOutputs(gradients=[], state={}, sums=self.count(batch))


def totals_of(
    replica_step: ReplicaFunction,
    sum_over_replicas: Callable[[ReplicaFunction], Mapping[str, tf.Tensor]],
) -> dict[str, Any]:
    """Returns the totals that a step needs; empty for most steps.

    Args:
      replica_step: Step of one replica.
      sum_over_replicas: Function that runs another step on every replica, and returns
        the sums of its outputs.
    """
    if not isinstance(replica_step, WithTotals):
        return {}
    return dict(sum_over_replicas(replica_step.count_rows))
