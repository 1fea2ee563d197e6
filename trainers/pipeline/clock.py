"""The time inside the runtime, read by each stage without waiting for the others."""

from __future__ import annotations

from collections.abc import Sequence

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

    def now(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Seconds, float64 scalar, when all of some tensors are computed."""
        # As a value, because what a function does without one may run before the call.
        with tf.control_dependencies(after):
            gate = self._variable.read_value()
        return self._read(gate)

    def _timestamp(self, gate: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([gate, self._variable.read_value()]):
            return tf.timestamp()
