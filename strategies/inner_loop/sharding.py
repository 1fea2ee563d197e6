"""Which rows of a global batch belong to which replica."""

from __future__ import annotations

import tensorflow as tf

from strategies.common.types import Batch


def share_rows(
    num_rows: tf.Tensor, share: tf.Tensor | int, num_shares: tf.Tensor | int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Divides rows as evenly as they go; the first share always has one.

    A share with nothing to do is still given one row to compute on, to be
    weighed by zero. TensorFlow 2.21's oneDNN kernels are not safe on zero rows:
    the gradient of max pooling ends the whole process with `Check failed:
    dtype() == expected_dtype` (seen on CPU, tests/test_tensorflow_facts.py).

    Args:
      num_rows: int64 scalar, rows of what is divided; none if that is itself a
        share with nothing to do, which still carries one row.
      share: which share, from 0 to num_shares - 1.
      num_shares: into how many shares the batch is divided.

    Returns:
      First row, row after the last, and how many of them count (int64 scalars).
    """
    share = tf.cast(share, tf.int64)
    first = -((-share * num_rows) // num_shares)
    stop = -((-(share + 1) * num_rows) // num_shares)
    start = tf.maximum(tf.minimum(first, num_rows - 1), 0)
    return start, tf.maximum(stop, start + 1), stop - first


def take_share(
    batch: Batch, share: tf.Tensor | int, num_shares: tf.Tensor | int
) -> Batch:
    """One replica's rows of a whole global batch."""
    start, stop, num_rows = share_rows(batch.num_rows, share, num_shares)
    indices, features, labels = tf.nest.map_structure(
        lambda rows: rows[start:stop], (batch.indices, batch.features, batch.labels)
    )
    return batch._replace(
        replica=tf.cast(share, tf.int64),
        num_rows=num_rows,
        indices=indices,
        features=features,
        labels=labels,
    )


def take_micro_batch(
    batch: Batch, index: tf.Tensor | int, count: tf.Tensor | int, most: int
) -> Batch:
    """Some of one replica's rows, which count as a share of their own.

    Micro-batch m of replica r is share r M + m, as if each were a replica: random
    layers draw for it what they would draw for that one.

    Args:
      batch: a replica's rows.
      index: which micro-batch, from 0 to count - 1.
      count: into how many these rows are divided.
      most: into how many a replica's rows are divided at most (M).
    """
    part = take_share(batch, index, count)
    return part._replace(replica=batch.replica * most + part.replica)


def row_weights(batch: Batch, of_rows: tf.Tensor) -> tf.Tensor:
    """1 for rows that count, 0 for the stand-in row of an empty share.

    Args:
      batch: tells how many rows count.
      of_rows: what is to be weighted, [rows]; not `batch.indices`, which no step but
        those that draw random numbers needs, so that it is not sent to its device.

    Returns:
      [rows], of the type of `of_rows`.
    """
    rows = tf.range(tf.size(of_rows, out_type=tf.int64))
    return tf.cast(rows < batch.num_rows, of_rows.dtype)
