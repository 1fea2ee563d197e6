"""Which examples each step of a run sees.

Global batch k of an epoch depends on (seed, epoch, k) alone: not on how many
replicas share it, not on what ran before. A run can therefore start at any step
and see what it would have seen.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from strategies.inner_loop.sharding import share_rows

# index_shuffle evaluates a permutation at single positions, so that nothing of the
# size of the data set is stored or made anew each epoch. Its four rounds are weak,
# though: keyed by plain (seed, epoch), which example came first in 6,000 epochs of
# 1,438 was far from uniform (chi-squared p < 1e-300). Keys that are random numbers
# themselves mend that (p = 0.6), and a second pass mends it for the smallest data
# sets too (10 examples: p = 0.015 with one pass, 0.35 with two).
_PASSES = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The sequence of global batches.

    Every epoch visits each example exactly once; its last batch holds what is
    left over and may be smaller than the others. Without that batch, an epoch leaves
    out the examples that come last in its own permutation of all of them, so that no
    example is left out more often than another.

    Attributes:
      num_examples: to choose from.
      global_batch_size: examples of a batch, the last of an epoch excepted.
      seed: decides the permutation of each epoch; None for ascending order.
      drop_last_batch: whether an epoch ends before a batch that would be smaller.
    """

    num_examples: int
    global_batch_size: int
    seed: int | None
    drop_last_batch: bool = False

    @property
    def examples_per_epoch(self) -> int:
        left_over = self.num_examples % self.global_batch_size
        return self.num_examples - (left_over if self.drop_last_batch else 0)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.examples_per_epoch // self.global_batch_size)

    def examples_before(self, step: int) -> int:
        """Examples in all batches before a step, counted over epochs."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        return epoch * self.examples_per_epoch + batch * self.global_batch_size

    def indices(
        self, step: tf.Tensor, share: tf.Tensor | int, num_shares: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The examples of one share of a step.

        Args:
          step: int64 scalar.
          share: which share of the global batch.
          num_shares: into how many it is divided.

        Returns:
          int64 indices [rows] (one stand-in row for an empty share), how many of
          them count, and the size of the global batch.
        """
        indices, num_rows, global_size = self.indices_of_several(
            step, tf.ones([], tf.int64), share, num_shares
        )
        return indices[0], num_rows, global_size

    def indices_of_several(
        self,
        step: tf.Tensor,
        num_steps: tf.Tensor,
        share: tf.Tensor | int,
        num_shares: int,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The same for steps of one epoch whose batches have one size.

        Args:
          step: the first, int64 scalar.
          num_steps: int64 scalar.
          share: which share of each global batch.
          num_shares: into how many it is divided.

        Returns:
          int64 indices [num_steps, rows], and of each step what `indices` returns.
        """
        epoch = step // self.steps_per_epoch
        first = (step % self.steps_per_epoch) * self.global_batch_size
        global_size = tf.minimum(
            tf.constant(self.global_batch_size, tf.int64), self.num_examples - first
        )
        start, stop, num_rows = share_rows(global_size, share, num_shares)
        begins = first + self.global_batch_size * tf.range(num_steps)
        positions = begins[:, tf.newaxis] + tf.range(start, stop)
        shuffled = self._shuffled(tf.reshape(positions, [-1]), epoch)
        return tf.reshape(shuffled, tf.shape(positions)), num_rows, global_size

    def _shuffled(self, positions: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        if self.seed is None:
            return positions
        keys = tf.random.stateless_uniform(
            [_PASSES, 2],
            tf.stack([tf.constant(self.seed, tf.int64), epoch]),
            minval=None,
            maxval=None,
            dtype=tf.int64,
        )
        last = tf.constant(self.num_examples - 1, tf.int64)
        for key in tf.unstack(keys):
            positions = tf.random.experimental.index_shuffle(positions, key, last)
        return positions
