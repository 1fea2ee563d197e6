"""How many steps are read together, and their batches as one."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from strategies.base import Batch

# Enough for what an element of a pipeline costs, whatever is in it, to be divided by
# (docs/performance.md); what is larger would only take longer to come.
_STEPS_AT_ONCE = 32
_BYTES_AT_ONCE = 2**18


def steps_at_once(step_bytes: int) -> int:
    """How many steps are read together, at most.

    Args:
      step_bytes: of the examples of one.
    """
    return min(max(_BYTES_AT_ONCE // max(step_bytes, 1), 1), _STEPS_AT_ONCE)


def batch_of_steps(
    *,
    first: tf.Tensor,
    share: int,
    num_rows: tf.Tensor,
    global_size: tf.Tensor,
    indices: tf.Tensor,
    features: Any,
    labels: Any,
) -> Batch:
    """Batches of one size as one, whose every tensor is [steps, ...].

    Args:
      first: of the steps, int64 scalar.
      share: whose rows they have.
      num_rows: how many rows of each count.
      global_size: examples in each global batch.
      indices: int64 [steps, rows of a step].
      features: tensors [rows of all steps, ...] with a static shape but for their
        number.
      labels: likewise.
    """
    shape = tf.shape(indices)
    count = tf.cast(shape[0], tf.int64)
    same = functools.partial(tf.fill, [count])
    divided = functools.partial(_per_step, shape=shape)
    return Batch(
        step=first + tf.range(count),
        replica=same(tf.constant(share, tf.int64)),
        global_size=same(global_size),
        num_rows=same(num_rows),
        indices=indices,
        features=tf.nest.map_structure(divided, features),
        labels=tf.nest.map_structure(divided, labels),
    )


def _per_step(rows: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """[steps, rows of a step, ...] of [rows of all steps, ...]."""
    inner = tf.shape(rows)[1:]
    divided = tf.reshape(rows, tf.concat([shape, inner], axis=0))
    return tf.ensure_shape(divided, [None, None, *rows.shape[1:]])
