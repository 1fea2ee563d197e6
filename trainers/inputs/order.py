"""Which examples each step of a run sees.

Global batch k of an epoch depends on (seed, epoch, k) alone: not on how many
replicas share it, not on what ran before. A run can therefore start at any step
and see what it would have seen.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from strategies.base import Batch
from strategies.batch import share_rows
from trainers.inputs.augmentation import Augment
from trainers.inputs.data import Source

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
        epoch = step // self.steps_per_epoch
        first = (step % self.steps_per_epoch) * self.global_batch_size
        global_size = tf.minimum(
            tf.constant(self.global_batch_size, tf.int64), self.num_examples - first
        )
        start, stop, num_rows = share_rows(global_size, share, num_shares)
        positions = tf.range(first + start, first + stop)
        return self._shuffled(positions, epoch), num_rows, global_size

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceBatches:
    """The batches of steps from `first_step` up to, but not including, `last_step`.

    Satisfies `GlobalBatches`.

    Attributes:
      source: of the examples.
      order: in which they come; with a seed, if they are augmented.
      first_step: counted over epochs.
      last_step: likewise.
      augment: changes features by step; None to leave them as they are read.
    """

    source: Source
    order: Order
    first_step: int
    last_step: int
    augment: Augment | None = None

    @property
    def data(self) -> Source:
        return self.source

    def dataset(self, share: int, num_shares: int) -> tf.data.Dataset:
        tensors = self.source.tensors()
        steps = tf.data.Dataset.range(self.first_step, self.last_step)
        # Autograph has nothing to convert here, and takes its time to find that out.
        batch = tf.autograph.experimental.do_not_convert(
            lambda step: self.at(tensors, step, share, num_shares)
        )
        return steps.map(
            batch,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        ).prefetch(tf.data.AUTOTUNE)

    def resident(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(self.source.tensors()).repeat()

    def at(
        self, resident: Any, step: tf.Tensor, share: tf.Tensor | int, num_shares: int
    ) -> Batch:
        indices, num_rows, global_size = self.order.indices(step, share, num_shares)
        features, labels = self.source.read(resident, indices)
        if self.augment is not None and self.order.seed is not None:
            features = self.augment(features, indices, step, self.order.seed)
        return Batch(
            step=step,
            replica=tf.cast(share, tf.int64),
            global_size=global_size,
            num_rows=num_rows,
            indices=indices,
            features=features,
            labels=labels,
        )
