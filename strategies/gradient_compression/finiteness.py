"""Check that gradients are finite, although only an approximation of them is sent."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.inner_loop.reduction import totals
from strategies.inner_loop.results import OWN_TOTALS


def with_own_totals(
    outputs: ReplicaOutputs, values: Mapping[int, tf.Tensor]
) -> ReplicaOutputs:
    """Returns outputs with a sum that says whether this replica's values are finite.

    Args:
      outputs: Outputs of one replica.
      values: Values before their compression, by the index of their gradient.
    """
    whole = list(outputs.gradients)
    for index, value in values.items():
        whole[index] = value
    # Zero, or NaN if a value is not finite, which then reaches every replica: the
    # approximation may have left it out.
    own_totals = 0 * totals(outputs._replace(gradients=whole))
    return outputs._replace(sums={**outputs.sums, OWN_TOTALS: own_totals})


def with_totals_of_sum(summed: ReplicaOutputs) -> ReplicaOutputs:
    """Returns summed outputs whose totals cover the sum and all its parts.

    The sum may overflow where no part of it does.
    """
    changes = summed.sums[OWN_TOTALS] + totals(summed)
    return summed._replace(sums={**summed.sums, OWN_TOTALS: changes})
