"""Division of a global batch into shards of rows."""

import tensorflow as tf

from strategies.common.types import Batch


def shard_rows(
    num_rows: tf.Tensor, shard_index: tf.Tensor | int, num_shards: tf.Tensor | int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the rows of one shard, as even a division as possible.

    The first shard always has a row. An empty shard still gets one row to compute on,
    with weight zero. TensorFlow 2.21's oneDNN kernels are not safe on zero rows: the
    gradient of max pooling ends the whole process with `Check failed: dtype() ==
    expected_dtype` (seen on CPU, tests/test_tensorflow_facts.py).

    Args:
      num_rows: Number of divided rows, int64 scalar; zero for the rows of an empty
        shard, which still carries one row.
      shard_index: Index of the shard, from 0 to num_shards - 1.
      num_shards: Number of shards.

    Returns:
      First row, row after the last, and number of rows that count (int64 scalars).
    """
    # -(-a // b) rounds a / b up. Rounded down, the first shard would be empty if there
    # are more shards than rows.
    shard_index = tf.cast(shard_index, tf.int64)
    first = -((-shard_index * num_rows) // num_shards)
    stop = -((-(shard_index + 1) * num_rows) // num_shards)
    start = tf.maximum(tf.minimum(first, num_rows - 1), 0)
    return start, tf.maximum(stop, start + 1), stop - first


def take_shard(
    batch: Batch, shard_index: tf.Tensor | int, num_shards: tf.Tensor | int
) -> Batch:
    """Returns one shard of a whole global batch."""
    start, stop, num_rows = shard_rows(batch.num_rows, shard_index, num_shards)
    indices, features, labels = tf.nest.map_structure(
        lambda rows: rows[start:stop], (batch.indices, batch.features, batch.labels)
    )
    return batch._replace(
        replica=tf.cast(shard_index, tf.int64),
        num_rows=num_rows,
        indices=indices,
        features=features,
        labels=labels,
    )


def take_replica_shard(batch: Batch, context: tf.distribute.ReplicaContext) -> Batch:
    """Returns the calling replica's shard of a whole global batch."""
    return take_shard(
        batch, context.replica_id_in_sync_group, context.num_replicas_in_sync
    )


def take_micro_batch(
    batch: Batch, index: tf.Tensor | int, count: tf.Tensor | int, most: int
) -> Batch:
    """Returns one micro-batch of a replica's shard, as a separate shard.

    Micro-batch m of replica r is shard r M + m, as if each micro-batch had a replica:
    random layers draw the same numbers for it as for that replica.

    Args:
      batch: Shard of one replica.
      index: Index of the micro-batch, from 0 to count - 1.
      count: Number of micro-batches of this shard.
      most: Largest number of micro-batches of any shard (M).
    """
    part = take_shard(batch, index, count)
    return part._replace(replica=batch.replica * most + part.replica)


def row_weights(batch: Batch, values: tf.Tensor) -> tf.Tensor:
    """Returns 1 for rows that count and 0 for the additional row of an empty shard."""
    # Not the length of `batch.indices`: only steps that draw random numbers need the
    # indices, so that other steps do not send them to the device.
    rows = tf.range(tf.size(values, out_type=tf.int64))
    return tf.cast(rows < batch.num_rows, values.dtype)
