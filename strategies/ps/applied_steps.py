"""Record of applied steps on a parameter server.

If a worker dies, its closure runs again from the beginning on another worker: the
coordinator promises "at least once" (tensorflow/python/distribute/coordinator/
cluster_coordinator.py, `ClusterCoordinator`). The closure then finds here which of its
steps were applied and their reported values, and continues after these steps.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.tracing import outside_of_traces
from strategies.inner_loop.results import Packing
from strategies.ps import NUM_RECORDED_STEPS

_MOST_BYTES = 4 << 30


class Record(NamedTuple):
    """Record of one step, on the server.

    Attributes:
      place: Call and step, int64 [2].
      row: Reported values and the version of the weights, float64 [values + 1].
    """

    place: tf.Tensor
    row: tf.Tensor


class AppliedSteps:
    """Record of the newest steps: values and a commit for each.

    Values are written while a step is applied, and committed as soon as it is counted.
    The count is on the same server, so that the death of a worker cannot separate the
    two.
    """

    def __init__(self, server: str):
        """Makes the variable of the commits."""
        self._server = server
        self._layout = Packing()
        # `encode` makes this variable, because only tracing shows the reported values.
        self._values: tf.Variable | None = None
        # Columns: the call, the step, and the count of updates after it. The call is
        # needed because a run that rolls back to a checkpoint runs a step again in
        # another call. Calls count from one, so that zeros commit no step.
        self._commits = self._variable(3, tf.int64)

    def encode(
        self, call: tf.Tensor, step: tf.Tensor, sums: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        """Returns a step's values for the server as one vector, float64 [n].

        Raises:
          UsageError: The record of these values does not fit into memory.
        """
        # Whole numbers are exact in float64 up to 2 ** 53.
        place = tf.cast(tf.stack([call, step]), tf.float64)
        values = self._layout.pack(
            {name: tf.convert_to_tensor(value) for name, value in sums.items()}
        )
        if self._values is None:
            _check_size(values.shape[0])
            with outside_of_traces():
                self._values = self._variable(values.shape[0] + 1, tf.float64)
        return tf.concat([place, values], axis=0)

    def record(self, encoded: tf.Tensor, version: tf.Tensor) -> Record:
        """Returns the record of a step, from the result of `encode`, on the server."""
        with tf.device(self._server):
            row = tf.concat([encoded[2:], [tf.cast(version, tf.float64)]], axis=0)
            return Record(tf.cast(encoded[:2], tf.int64), row)

    def write(self, record: Record) -> None:
        """Stores the reported values of a step, as part of its update."""
        if self._values is None:
            raise RuntimeError("there are no values to be written")
        with tf.device(self._server):
            write_row(self._values, record.place[1] % NUM_RECORDED_STEPS, record.row)

    def commit(self, record: Record, count: tf.Tensor) -> None:
        """Records that a step has been applied and counted."""
        with tf.device(self._server):
            row = tf.concat([record.place, [count]], axis=0)
            write_row(self._commits, record.place[1] % NUM_RECORDED_STEPS, row)

    def committed(
        self, call: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
    ) -> tf.Tensor:
        """Returns the commits of a closure's applied steps, int64 [steps done, 3].

        They end before the first step of the closure that was not applied.
        """
        with tf.device(self._server):
            steps = first_step + tf.range(tf.cast(num_steps, tf.int64))
            commits = self._commits.sparse_read(steps % NUM_RECORDED_STEPS)
            is_done = tf.equal(commits[:, 0], call) & tf.equal(commits[:, 1], steps)
            # 1 up to the first step that is not done, 0 from there on.
            unbroken = tf.math.cumprod(tf.cast(is_done, tf.int32))
            return commits[: tf.reduce_sum(unbroken)]

    def values(self, committed: tf.Tensor) -> tf.Tensor:
        """Returns the values of applied steps, float64 [steps done, values + 1].

        Raises:
          RuntimeError: This method is traced before `encode`.
        """
        if self._values is None:
            raise RuntimeError("values must be encoded first")
        with tf.device(self._server):
            return self._values.sparse_read(committed[:, 1] % NUM_RECORDED_STEPS)

    def read(
        self, committed: np.ndarray, values: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the sums by name and the staleness, float64 [steps done, ...]."""
        sums = self._layout.unpack(values[:, :-1])
        # Count after the update, less the update itself, less the version before it.
        return sums, committed[:, 2] - 1 - values[:, -1]

    def _variable(self, width: int, dtype: tf.DType) -> tf.Variable:
        with tf.device(self._server):
            return tf.Variable(
                tf.zeros([NUM_RECORDED_STEPS, width], dtype), trainable=False
            )


def _check_size(num_values: int) -> None:
    """Refuses more values of a step than a server keeps of all newest steps."""
    most = _MOST_BYTES // (NUM_RECORDED_STEPS * tf.float64.size)
    if num_values > most:
        raise UsageError(
            f"the metrics of this model have {num_values:,} numbers in each step, and "
            f"--update=async takes at most {most:,}: leave out the largest, such as an "
            "IoU of many classes, or choose --update=sync."
        )


def write_row(variable: tf.Variable, row: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Assigns one row of a variable."""
    slices = tf.IndexedSlices(value[tf.newaxis], row[tf.newaxis])
    return variable.scatter_update(slices).op
