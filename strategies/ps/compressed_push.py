"""Gradients that workers of synchronous parameter servers send, whole or compressed.

What a compressed gradient leaves out is added to the worker's next gradient. It stays
in the memory of the worker's process, as a variable of its loop, because a server would
receive as many bytes as a whole gradient has. When the loop ends, before a checkpoint
or an evaluation, it goes to the server that has the weight.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.common.types import ReplicaOutputs, Update
from strategies.gradient_compression.choice import Compression
from strategies.gradient_compression.methods import method_for
from strategies.inner_loop.reduction import bytes_of, with_own_finite_checks
from strategies.ps.applied_steps import write_row
from strategies.ps.element_layout import CompressedGradient

# No step begins at this number of applied updates, nor at the one after it.
_NEVER = -2


class WholeGradients:
    """Gradients that are sent as they are, without error feedback."""

    @property
    def description(self) -> str:
        """Form of the gradients, to add to the name of the exchange."""
        return ""

    def bytes_sent(self, gradient_bytes: int) -> int:
        """Returns the bytes that a worker sends for an update."""
        return gradient_bytes

    def variables(self) -> Sequence[tf.Variable]:
        """Returns the variables that a checkpoint needs in addition to the model."""
        return ()

    def start(self) -> Any:
        """Returns the loop variables of a worker before its first step."""
        return ()

    def compress(
        self,
        outputs: ReplicaOutputs,
        feedback: Any,
        version: tf.Tensor,
        worker: tf.Tensor,
    ) -> tuple[ReplicaOutputs, Any]:
        """Returns the outputs to send, and the loop variables after them.

        Args:
          outputs: Outputs of one worker.
          feedback: Loop variables of the worker.
          version: Number of updates applied to the weights that were read, int64.
          worker: Index of the worker, int64.
        """
        del feedback, version, worker
        return outputs, ()

    def store(self, feedback: Any, version: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        """Stores loop variables on the servers when a worker's loop ends.

        Returns true if there were any, a bool scalar.
        """
        del feedback, version, worker
        return tf.constant(False)


class _Feedback(NamedTuple):
    """Error feedback of one worker, as variables of its loop.

    An attempt is computed again if its update was skipped: from the same errors.

    Attributes:
      version: Number of applied updates at the worker's last attempt, int64.
      before: Error and state of the method for each compressed gradient, at the start
        of the attempt.
      after: The same at its end, for the next update.
    """

    version: tf.Tensor
    before: list[list[tf.Tensor]]
    after: list[list[tf.Tensor]]


class CompressedGradients(WholeGradients):
    """Large dense gradients as approximations, with error feedback."""

    def __init__(self, compression: Compression, update: Update, num_workers: int):
        """Makes the variables that keep all workers' errors between two loops."""
        self._method, self._specs = method_for(compression, update)
        devices = update.devices()
        # One row for each worker, on the server that has the weight.
        self._stored = [
            _zeros_on(devices[index], num_workers, values)
            for index, values in zip(self._specs, self._initial(), strict=True)
        ]
        with tf.device(devices[next(iter(self._specs))]):
            # Number of applied updates that each row belongs to.
            self._stored_at = tf.Variable(
                tf.fill([num_workers], tf.constant(_NEVER, tf.int64)), trainable=False
            )

    @property
    def description(self) -> str:
        return f", as {self._method.name}"

    def bytes_sent(self, gradient_bytes: int) -> int:
        specs = self._specs.values()
        encoded = sum(map(self._method.encoded_bytes, specs))
        return gradient_bytes - bytes_of(specs) + encoded

    def variables(self) -> Sequence[tf.Variable]:
        return [self._stored_at, *(v for row in self._stored for v in row)]

    def start(self) -> _Feedback:
        initial = self._initial()
        return _Feedback(tf.constant(_NEVER, tf.int64), initial, initial)

    def compress(
        self,
        outputs: ReplicaOutputs,
        feedback: Any,
        version: tf.Tensor,
        worker: tf.Tensor,
    ) -> tuple[ReplicaOutputs, Any]:
        before = self._at(feedback, version, worker)
        gradients, after = list(outputs.gradients), list(before)
        values = {}
        for position, (index, spec) in enumerate(self._specs.items()):
            # A step may have no gradient of a weight.
            if not isinstance(gradients[index], tf.Tensor):
                continue
            error, *state = before[position]
            # Error feedback: what earlier steps have not sent goes with this gradient.
            values[index] = gradients[index] + error
            encoded = self._method.encode(values[index], state)
            gradients[index] = CompressedGradient(encoded.parts, spec, self._method)
            after[position] = [encoded.error, *encoded.state]
        if values:
            outputs = with_own_finite_checks(outputs, values)
        return outputs._replace(gradients=gradients), _Feedback(version, before, after)

    def store(self, feedback: Any, version: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        def write() -> tf.Tensor:
            # A worker that is killed between two rows leaves none that count.
            with tf.control_dependencies([self._mark(worker, _NEVER)]):
                values = self._at(feedback, version, worker)
                rows = [
                    write_row(variable, worker, value)
                    for variables, own in zip(self._stored, values, strict=True)
                    for variable, value in zip(variables, own, strict=True)
                ]
            with tf.control_dependencies(rows):
                marked = self._mark(worker, version)
            with tf.control_dependencies([marked]):
                return tf.constant(True)

        # Restored weights have their own errors in the rows, which these would replace.
        is_valid = tf.equal(version, feedback.version) | tf.equal(
            version, feedback.version + 1
        )
        return tf.cond(is_valid, write, lambda: tf.constant(False))

    def _initial(self) -> list[list[tf.Tensor]]:
        return self._method.initial_feedback(self._specs)

    def _at(
        self, feedback: _Feedback, version: tf.Tensor, worker: tf.Tensor
    ) -> list[list[tf.Tensor]]:
        """Returns errors and states with which a step at a version begins.

        A worker that has just started, or whose weights were restored, continues with
        the stored values. If none were stored at this version, as by another strategy,
        another number of workers or a killed worker, it starts without an error.
        """

        def stored() -> list[list[tf.Tensor]]:
            return [[v.sparse_read(worker) for v in row] for row in self._stored]

        def elsewhere() -> list[list[tf.Tensor]]:
            # Read in this branch alone, because it takes a message.
            stored_at = self._stored_at.sparse_read(worker)
            return tf.cond(tf.equal(version, stored_at), stored, self._initial)

        return tf.case(
            [
                (tf.equal(version, feedback.version), lambda: feedback.before),
                (tf.equal(version, feedback.version + 1), lambda: feedback.after),
            ],
            default=elsewhere,
        )

    def _mark(self, worker: tf.Tensor, version: tf.Tensor | int) -> tf.Operation:
        return write_row(self._stored_at, worker, tf.cast(version, tf.int64))


def _zeros_on(
    device: str, num_rows: int, values: Sequence[tf.Tensor]
) -> list[tf.Variable]:
    with tf.device(device):
        return [
            tf.Variable(tf.zeros([num_rows, *v.shape], v.dtype), trainable=False)
            for v in values
        ]
