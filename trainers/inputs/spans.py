"""How many steps are read together, and their batches as one."""

from __future__ import annotations

import tensorflow as tf

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


def per_step(rows: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """[steps, rows of a step, ...] of [rows of all steps, ...].

    Args:
      rows: of steps that have as many each, with a static shape but for their number.
      shape: [steps, rows of a step].
    """
    inner = tf.shape(rows)[1:]
    divided = tf.reshape(rows, tf.concat([shape, inner], axis=0))
    return tf.ensure_shape(divided, [None, None, *rows.shape[1:]])
