"""Values of all replicas on every replica."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.inner_loop.all_reduce import sum_by_type
from strategies.inner_loop.replicated import on_first_replica


def gathered(
    strategy: tf.distribute.Strategy,
    own_values: Callable[[tf.distribute.ReplicaContext], Sequence[Any]],
) -> Sequence[tf.Tensor]:
    """Returns the values of all replicas, [replicas, ...] for each of them.

    Every replica holds the result.

    Args:
      strategy: Strategy with the replicas, in one or several processes.
      own_values: Function that returns the values of the calling replica, tensors or
        variables of the same shapes on all replicas.
    """

    # A sum takes the place of an all-gather: a replica contributes its values at its
    # own index and zeros at all others.
    def on_each_replica() -> Sequence[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        replicas = tf.range(strategy.num_replicas_in_sync)
        is_own = tf.equal(replicas, context.replica_id_in_sync_group)
        rows = [
            tf.where(
                # [replicas, 1, ..., 1] selects one row of [1, ...].
                tf.reshape(is_own, [-1, *(1 for _ in value.shape)]),
                tf.convert_to_tensor(value)[tf.newaxis],
                tf.zeros([], value.dtype),
            )
            for value in own_values(context)
        ]
        return sum_by_type(context, rows)

    return strategy.run(on_each_replica)


def gathered_messages(strategy: tf.distribute.Strategy, message: bytes) -> list[bytes]:
    """Returns the message of the process of each replica, in the order of replicas.

    All processes have to call this function, each with a message of any length.
    """

    def rows_of_all(own: np.ndarray) -> np.ndarray:
        gather = tf.function(
            lambda: gathered(strategy, lambda context: [tf.constant(own)]),
            autograph=False,
        )
        (rows,) = on_first_replica(strategy, gather())
        return rows.numpy()

    sizes = rows_of_all(np.array([len(message)], np.int64))[:, 0]
    # Collectives sum no bytes, but integers of eight bytes.
    padded = message.ljust(-(-int(sizes.max()) // 8) * 8, b"\0")
    rows = rows_of_all(np.frombuffer(padded, np.int64))
    return [row.tobytes()[:size] for row, size in zip(rows, sizes, strict=True)]
