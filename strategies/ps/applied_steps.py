"""What asynchronous workers have done of their closures, kept on a parameter server.

A closure whose worker is lost runs again from its beginning, on another worker: the
coordinator promises "at least once" (tensorflow/python/distribute/coordinator/
cluster_coordinator.py, `ClusterCoordinator`). Here it finds which of its steps were
applied and what they reported, and goes on after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# More steps than are under way at once: a closure that runs again finds those of its
# steps that were not overwritten, and repeats the others. A variable on a server cannot
# have an unknown shape: the server ends with SIGABRT (TensorFlow 2.21).
_NUM_ROWS = 1 << 14


class Entry(NamedTuple):
    """What is kept of a step, on the server.

    Attributes:
      place: int64, the call and the step.
      row: float64, what the step reports and the version it was computed on.
    """

    place: tf.Tensor
    row: tf.Tensor


class Journal:
    """A note and a mark for each of the newest steps.

    A step is noted while it is applied, and marked as soon as it is counted. The count
    is on the same server, so that no worker can be lost in between.
    """

    def __init__(self, server: str):
        """Makes place for marks; that for notes when it is known what is noted.

        Args:
          server: the device of the variable that counts applied updates.
        """
        self._server = server
        self._names: list[str] = []
        self._notes: tf.Variable | None = None
        # The call, the step, and the count of updates after it. Calls count from one:
        # a step may be done in several calls of a run that goes back to a checkpoint.
        self._marks = self._variable(3, tf.int64)

    def line(
        self, call: tf.Tensor, step: tf.Tensor, sums: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        """What a worker has to tell of a step, to be sent to the server: float64 [n].

        Args:
          call: int64 scalar, of the inner loop.
          step: int64 scalar.
          sums: named scalars.
        """
        self._names = sorted(sums)
        if self._notes is None:
            with tf.init_scope():
                self._notes = self._variable(len(sums) + 1, tf.float64)
        # Whole numbers are exact in float64 up to 2 ** 53.
        values = [call, step, *(sums[name] for name in self._names)]
        return tf.stack([tf.cast(value, tf.float64) for value in values])

    def entry(self, line: tf.Tensor, version: tf.Tensor) -> Entry:
        """What is to be kept of a step.

        Args:
          line: of the step, on the server.
          version: int64 scalar, of the weights it was computed on, also there.
        """
        with tf.device(self._server):
            row = tf.concat([line[2:], [tf.cast(version, tf.float64)]], axis=0)
            return Entry(tf.cast(line[:2], tf.int64), row)

    def note(self, entry: Entry) -> None:
        """Keeps what a step reports, as part of its update."""
        if self._notes is None:
            raise RuntimeError("there is no entry to be noted")
        with tf.device(self._server):
            self._notes.scatter_update(_at(entry.place[1], entry.row))

    def mark(self, entry: Entry, count: tf.Tensor) -> None:
        """Says that a step has been applied and counted.

        Args:
          entry: the step's.
          count: int64 scalar, of applied updates, this one included.
        """
        with tf.device(self._server):
            mark = tf.concat([entry.place, [count]], axis=0)
            self._marks.scatter_update(_at(entry.place[1], mark))

    def done(
        self, call: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
    ) -> tf.Tensor:
        """Marks of a closure's steps, from the first one on: int64 [steps done, 3].

        Args:
          call: int64 scalar, of the inner loop.
          first_step: int64 scalar.
          num_steps: int32 scalar.
        """
        with tf.device(self._server):
            steps = first_step + tf.range(tf.cast(num_steps, tf.int64))
            marks = tf.gather(self._marks.read_value(), steps % _NUM_ROWS)
            is_done = tf.equal(marks[:, 0], call) & tf.equal(marks[:, 1], steps)
            unbroken = tf.math.cumprod(tf.cast(is_done, tf.int32))
            return marks[: tf.reduce_sum(unbroken)]

    def noted(self, done: tf.Tensor) -> tf.Tensor:
        """What those steps reported: float64 [steps done, values].

        Raises:
          RuntimeError: this is traced before `note` is.
        """
        if self._notes is None:
            raise RuntimeError("what is noted must be traced first")
        with tf.device(self._server):
            return tf.gather(self._notes.read_value(), done[:, 1] % _NUM_ROWS)

    def read(
        self, done: np.ndarray, noted: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Their sums by name, and the staleness of each: float64 [steps done] all."""
        sums = {name: noted[:, column] for column, name in enumerate(self._names)}
        return sums, done[:, 2] - 1 - noted[:, -1]

    def _variable(self, width: int, dtype: tf.DType) -> tf.Variable:
        with tf.device(self._server):
            return tf.Variable(tf.zeros([_NUM_ROWS, width], dtype), trainable=False)


def _at(step: tf.Tensor, row: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(row[tf.newaxis], (step % _NUM_ROWS)[tf.newaxis])
