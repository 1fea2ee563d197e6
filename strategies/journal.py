"""What asynchronous workers have done of their closures, kept on a parameter server.

A closure whose worker is lost runs again from its beginning, on another worker: the
coordinator promises "at least once" (tensorflow/python/distribute/coordinator/
cluster_coordinator.py, `ClusterCoordinator`). Here it finds which of its steps were
applied and what they reported, and goes on after them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf


class Journal:
    """A note and a mark for each step of one call of the inner loop.

    A step is noted while it is applied, and marked as soon as it is counted. The count
    is on the same server, so that no worker can be lost in between.
    """

    def __init__(self, server: str):
        """Has no room for any step yet.

        Args:
          server: the device of the variable that counts applied updates.
        """
        self._server = server
        self._names: list[str] = []
        with tf.device(server):
            self._first_step = tf.Variable(0, trainable=False, dtype=tf.int64)
            # What a step reports, and the version of the weights it was computed on.
            self._notes = tf.Variable(
                tf.zeros([0, 0], tf.float64), trainable=False, shape=[None, None]
            )
            # The number of the step, counted from one, and the count after it. Zeros
            # stand for a step that has not been applied.
            self._marks = tf.Variable(
                tf.zeros([0, 2], tf.int64), trainable=False, shape=[None, 2]
            )

    def begin(self, first_step: int, num_steps: int) -> None:
        """Makes room for the steps of a call, and forgets those of the call before."""
        with tf.device(self._server):
            self._first_step.assign(first_step)
            self._notes.assign(tf.zeros([num_steps, len(self._names) + 1], tf.float64))
            self._marks.assign(tf.zeros([num_steps, 2], tf.int64))

    def note(
        self, step: tf.Tensor, sums: Mapping[str, tf.Tensor], version: tf.Tensor
    ) -> None:
        """Keeps what a step reports, as part of its update.

        Args:
          step: int64 scalar.
          sums: named scalars.
          version: int64 scalar, of the weights it was computed on.
        """
        self._names = sorted(sums)
        values = [*(sums[name] for name in self._names), version]
        with tf.device(self._server):
            row = tf.stack([tf.cast(value, tf.float64) for value in values])
            self._notes.scatter_update(self._row(step, row))

    def mark(self, step: tf.Tensor, count: tf.Tensor) -> None:
        """Says that a step has been applied and counted.

        Args:
          step: int64 scalar.
          count: int64 scalar, of applied updates, this one included.
        """
        with tf.device(self._server):
            self._marks.scatter_update(self._row(step, tf.stack([step + 1, count])))

    def num_done(self, first_step: tf.Tensor, num_steps: tf.Tensor) -> tf.Tensor:
        """How many of a closure's steps are marked, from the first one on: int32.

        Args:
          first_step: int64 scalar.
          num_steps: int32 scalar.
        """
        with tf.device(self._server):
            first = tf.cast(first_step - self._first_step.read_value(), tf.int32)
            steps = first_step + tf.range(1, tf.cast(num_steps, tf.int64) + 1)
            marked = self._marks.read_value()[first : first + num_steps, 0]
            return tf.reduce_sum(
                tf.math.cumprod(tf.cast(tf.equal(marked, steps), tf.int32))
            )

    def read(
        self, first_step: int, num_steps: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What steps that are marked have reported.

        Returns:
          Their sums by name, and the staleness of each: float64 [num_steps] all.
        """
        first = first_step - int(self._first_step.numpy())
        rows = slice(first, first + num_steps)
        notes, marks = self._notes.numpy()[rows], self._marks.numpy()[rows]
        sums = {name: notes[:, column] for column, name in enumerate(self._names)}
        return sums, marks[:, 1] - 1 - notes[:, -1]

    def _row(self, step: tf.Tensor, row: tf.Tensor) -> tf.IndexedSlices:
        index = step - self._first_step.read_value()
        return tf.IndexedSlices(row[tf.newaxis], index[tf.newaxis])
