"""Tells workers which attempt at an update is under way, and wakes them for it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# Values of a turn that are not attempts, which count from one.
NOTHING_YET, NO_MORE = 0, -1


class Turns:
    """The number of the present attempt, and a queue of tokens for each worker.

    The number is what counts; a token only says that it has changed. So a worker that
    was slow, or has taken over from one that was lost, goes on with the present
    attempt whatever tokens it finds.
    """

    def __init__(self, server: str, num_workers: int):
        """Makes them on a server.

        Args:
          server: its device.
          num_workers: how many wait for their turn.
        """
        self._server = server
        with tf.device(server):
            self._turn = tf.Variable(NOTHING_YET, trainable=False, dtype=tf.int64)
            self._attempts = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._tokens = [
                tf.queue.FIFOQueue(-1, [tf.bool]) for _ in range(num_workers)
            ]

    def token_queues(self) -> Sequence[tf.Tensor]:
        """Of each worker, as a closure is told of it."""
        return [queue.queue_ref for queue in self._tokens]

    def reset(self) -> None:
        """Has workers that begin wait for the next attempt."""
        self._turn.assign(NOTHING_YET)

    def end(self) -> None:
        """Tells all workers that there are no more attempts."""
        self._turn.assign(NO_MORE)
        self._wake_all()

    def next_attempt(self) -> tf.Tensor:
        """Begins an attempt and returns its number, as graph operations."""
        attempt = self._attempts.assign_add(1, read_value=True)
        with tf.control_dependencies([self._turn.assign(attempt, read_value=True)]):
            woken = self._wake_all()
        with tf.control_dependencies(woken):
            return tf.identity(attempt)

    def present(self) -> tf.Tensor:
        """The number of the present attempt, read on the server by a worker."""
        with tf.device(self._server):
            return self._turn.read_value()

    def wait(self, tokens: tf.Tensor) -> tf.Tensor:
        """Takes a worker's next token, for which it waits if need be.

        Args:
          tokens: that worker's, of `token_queues`.
        """
        with tf.device(self._server):
            (token,) = tf.raw_ops.QueueDequeueV2(
                handle=tokens, component_types=[tf.bool], timeout_ms=-1
            )
            return token

    def _wake_all(self) -> list[tf.Operation]:
        return [queue.enqueue([True]) for queue in self._tokens]
