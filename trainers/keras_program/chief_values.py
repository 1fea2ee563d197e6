"""Values of the chief that are no tensors, for all tasks."""

from __future__ import annotations

import json
from typing import Any

import tensorflow as tf

from strategies.base import Strategy


def broadcast_json(strategy: Strategy, content: Any) -> Any:
    """Returns what JSON makes of the chief's content, on every task.

    Args:
      strategy: Strategy with the tasks, all of which call this function.
      content: Content of this task; that of other tasks than the chief is ignored.
    """
    text = tf.io.decode_raw(json.dumps(content), tf.uint8)
    # Other tasks learn how long the text is before they can receive it.
    length = tf.Variable(float(text.shape[0]))
    strategy.broadcast_from_chief([length])
    shared = tf.Variable(tf.zeros([int(length.numpy())]))
    if text.shape == shared.shape:
        shared.assign(tf.cast(text, tf.float32))
    strategy.broadcast_from_chief([shared])
    return json.loads(bytes(shared.numpy().astype("uint8").tolist()).decode())
