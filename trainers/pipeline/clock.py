"""The time inside the runtime, read by each stage without waiting for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class StageClock:
    """Tells the time on a stage's device.

    `tf.timestamp` in the graph of a step would put the stages one after another:
    TensorFlow runs operations that have a state and use no resource in the order in
    which they were made, on whatever devices. One that reads a resource only waits for
    those that write to it (tensorflow/python/framework/auto_control_deps.py). So this
    clock reads a variable of its own, to which nobody writes.
    """

    def __init__(self, device: str):
        with tf.device(device):
            self._variable = tf.Variable(0.0, trainable=False, name="clock")
        self._read = tf.function(self._timestamp, autograph=False)

    def now(self, after: Sequence[Any]) -> tf.Tensor:
        """Seconds, float64 scalar, when all of some tensors are computed.

        To depend on a call of a function (`tf.control_dependencies`) is to wait for its
        side effects alone, so that this takes a number of each tensor.

        Args:
          after: numbers of any type and shape, and IndexedSlices.
        """
        numbers = tf.concat([_first_number(value) for value in after], axis=0)
        return self._read(tf.reduce_sum(numbers))

    def _timestamp(self, computed: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([computed, self._variable.read_value()]):
            return tf.timestamp()


def _first_number(value: Any) -> tf.Tensor:
    """Shape [1], or [0] if there is none."""
    numbers = value.values if isinstance(value, tf.IndexedSlices) else value
    return tf.cast(tf.reshape(numbers, [-1])[:1], tf.float32)
