"""Losses of single outputs as `fit` reports them: means over batches.

Keras weighs the total loss of a batch by its examples. The loss of one output has no
such weight, because a batch has no known size in a graph (keras/src/trainers/
compile_utils.py, `CompileLoss.call`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from models.objective import Summed
from trainers.user_code.counting_metric import STATE

# Ends of the names of sums: of the losses of batches, and of the number of batches.
_TOTAL, _COUNT = f"{STATE}total", f"{STATE}count"


def sums_over_batches(
    losses: Mapping[str, tf.Tensor], global_size: tf.Tensor | int
) -> dict[str, Summed]:
    """Returns a replica's parts of the loss of a global batch and of the number one.

    Args:
      losses: Values [n] by name, whose mean over the global batch is its loss.
      global_size: Examples of the global batch.
    """
    found = {}
    for name, values in losses.items():
        rows = tf.cast(values, tf.float64)
        size = tf.cast(global_size, tf.float64)
        found[name + _TOTAL] = Summed(tf.reduce_sum(rows) / size)
        found[name + _COUNT] = Summed(tf.reduce_sum(tf.ones_like(rows)) / size)
    return found


def total_and_count(sums: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Returns the sum of the losses of batches, and the number of batches.

    Args:
      sums: Sums over batches, from `sums_over_batches`.
      name: Name of a loss.
    """
    return sums[name + _TOTAL], sums[name + _COUNT]
