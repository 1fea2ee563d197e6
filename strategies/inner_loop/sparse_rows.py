"""Sum of sparse gradients over replicas, by gathering their rows."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.common.private_apis.collectives import gather_by_key

# Numbers of rows that are sent: never fewer, and at most an eighth more than there are.
# Each number has a separate key, so that there are no more keys than numbers here.
_ROWS_ON_THE_WIRE = np.unique(
    [2**octave * (8 + eighth) // 8 for octave in range(28) for eighth in range(8)]
).astype(np.int32)
_FIRST_KEY = 1 << 30
# First key of each kind of gathered tensors, in the order in which they are traced.
# TensorFlow keeps the shape of a key until the process ends, and a program may train
# several models. All workers trace the same functions, and so have the same order.
_first_keys: dict[Hashable, int] = {}


def _first_key(kind: Hashable) -> int:
    """Returns the first of the keys for tensors of a kind, which no other kind has.

    Args:
      kind: Properties of the tensors, all of them but the number of rows.
    """
    key = _FIRST_KEY + len(_first_keys) * len(_ROWS_ON_THE_WIRE)
    return _first_keys.setdefault(kind, key)


def sum_sparse(
    context: tf.distribute.ReplicaContext, gradients: Sequence[Any]
) -> list[Any]:
    """Returns gradients in which IndexedSlices have the rows of all replicas.

    Rows of the same index add up when applied. A collective has one shape on all
    replicas, and TensorFlow remembers the shape by the collective's key. So replicas
    first agree on a number of rows, fill theirs up to it, and take the key of that
    number (`gather_by_key`).
    """
    places = [i for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices)]
    if not places:
        return list(gradients)
    # One collective for the numbers of rows of all tables.
    own = tf.stack([tf.size(gradients[place].indices) for place in places])
    key = tf.constant(_first_key(("counts", len(places))))
    counts = gather_by_key(context, own, key)
    counts = tf.reshape(counts, [-1, len(places)])
    summed = list(gradients)
    for column, place in enumerate(places):
        slices = gradients[place]
        parts = [tf.cast(slices.indices, tf.int64), slices.values]
        indices, values = (
            _gather_rows(context, part, counts[:, column], column) for part in parts
        )
        summed[place] = tf.IndexedSlices(values, indices, slices.dense_shape)
    return summed


def _gather_rows(
    context: tf.distribute.ReplicaContext,
    rows: tf.Tensor,
    counts: tf.Tensor,
    column: int,
) -> tf.Tensor:
    """Returns the rows of all replicas [sum of counts, ...], in the replicas' order.

    Args:
      context: Context of the calling replica.
      rows: Rows of this replica, [its count, ...].
      counts: Rows of each replica, int32 [replicas].
      column: Index of the gradient among the sparse ones.
    """
    first_key = _first_key((column, rows.dtype, *rows.shape[1:]))
    choice = tf.searchsorted(_ROWS_ON_THE_WIRE, [tf.reduce_max(counts)])[0]
    num_sent = tf.gather(_ROWS_ON_THE_WIRE, choice)
    # Zeros at the end: the mask below drops them again.
    missing = num_sent - tf.shape(rows)[0]
    padding = [[0, missing]] + [[0, 0]] * (rows.shape.rank - 1)
    gathered = gather_by_key(context, tf.pad(rows, padding), first_key + choice)
    is_row = tf.reshape(tf.sequence_mask(counts, num_sent), [-1])
    return tf.ensure_shape(tf.boolean_mask(gathered, is_row), [None, *rows.shape[1:]])
