"""Numbers of attempts at an update, and tokens that wake workers."""

from collections.abc import Sequence

import tensorflow as tf

# Numbers of the present attempt without one. Attempts count from one.
NOT_STARTED, FINISHED = 0, -1


class StepTokens:
    """Number of the present attempt, with a queue of tokens for each worker.

    Only the number has a meaning; a token says that the number has changed. A slow
    worker, or the replacement of a dead worker, therefore continues with the present
    attempt, regardless of the tokens in its queue.
    """

    def __init__(self, server: str, num_workers: int):
        """Makes the variables and queues on a server."""
        self._server = server
        with tf.device(server):
            # The present attempt may be FINISHED. The number never decreases.
            self._present = tf.Variable(NOT_STARTED, trainable=False, dtype=tf.int64)
            self._attempts = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._tokens = [
                tf.queue.FIFOQueue(-1, [tf.bool]) for _ in range(num_workers)
            ]

    def token_queues(self) -> Sequence[tf.Tensor]:
        """Returns the token queue of each worker as a tensor, for closures."""
        # A closure takes tensors as arguments, but no queue objects.
        return [queue.queue_ref for queue in self._tokens]

    def reset(self) -> None:
        """Makes workers that start wait for the next attempt."""
        self._present.assign(NOT_STARTED)

    def end(self) -> None:
        """Tells all workers that there are no more attempts."""
        self._present.assign(FINISHED)
        self._wake_all()

    def next_attempt(self) -> tf.Tensor:
        """Starts an attempt and returns its number, as graph operations."""
        # The number changes before the tokens are sent, so that a woken worker reads
        # the new number.
        attempt = self._attempts.assign_add(1, read_value=True)
        with tf.control_dependencies([self._present.assign(attempt, read_value=True)]):
            woken = self._wake_all()
        with tf.control_dependencies(woken):
            return tf.identity(attempt)

    def present(self) -> tf.Tensor:
        """Returns the number of the present attempt, read on the server by a worker."""
        with tf.device(self._server):
            return self._present.read_value()

    def wait(self, token_queue: tf.Tensor) -> tf.Tensor:
        """Waits for a worker's next token and returns it."""
        with tf.device(self._server):
            (token,) = tf.raw_ops.QueueDequeueV2(
                handle=token_queue, component_types=[tf.bool], timeout_ms=-1
            )
            return token

    def _wake_all(self) -> list[tf.Operation]:
        return [queue.enqueue([True]) for queue in self._tokens]
