"""The largest entries of gradients, with their positions.

Lin et al., Deep Gradient Compression, 2018; Stich et al., Sparsified SGD with Memory,
2018.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from strategies.common.types import ReplicaOutputs
from strategies.gradient_compression.method import (
    Encoded,
    Method,
    Reduced,
    gather_vectors,
    wide_type,
)
from strategies.inner_loop.all_reduce import all_reduce_packed

_POSITION_BYTES = 4


class TopK(Method):
    """Sums the largest entries of each replica's gradients.

    Every replica receives the entries of all others, and adds them up in the order of
    the replicas.
    """

    collectives = "ring all-gather"

    def __init__(self, fraction: float):
        self._fraction = fraction
        self.name = f"largest {100 * fraction:g} % of entries"

    def compresses(self, spec: tf.TensorSpec) -> bool:
        return 0 < spec.shape.num_elements() < 1 << 31

    def bytes_sent(self, specs: Sequence[tf.TensorSpec], num_replicas: int) -> float:
        sizes = [
            self._num_entries(spec.shape)
            * (wide_type(spec.dtype).size + _POSITION_BYTES)
            for spec in specs
        ]
        return (num_replicas - 1) * sum(sizes)

    def reduce(
        self,
        context: tf.distribute.ReplicaContext,
        values: Sequence[tf.Tensor],
        state: Sequence[Sequence[tf.Tensor]],
        others: ReplicaOutputs,
    ) -> Reduced:
        others = all_reduce_packed(context, others)
        encoded = [
            self.encode(value, own) for value, own in zip(values, state, strict=True)
        ]
        words: list[tf.Tensor] = []
        for (positions, entries), _, _ in encoded:
            words += [positions, tf.reshape(tf.bitcast(entries, tf.int32), [-1])]
        gathered = gather_vectors(context, tf.concat(words, axis=0))
        # Positions and entries of each value in turn, as they were packed.
        parts = tf.split(gathered, [word.shape[0] for word in words], axis=1)
        return Reduced(
            others=others,
            sums=[
                _sum_of(positions, entries, value)
                for positions, entries, value in zip(
                    parts[::2], parts[1::2], values, strict=True
                )
            ],
            errors=[each.error for each in encoded],
            state=state,
        )

    def encode(self, value: tf.Tensor, state: Sequence[tf.Tensor]) -> Encoded:
        vector = tf.reshape(value, [-1])
        count = self._num_entries(value.shape)
        # The order of entries does not matter: each has its position with it.
        _, positions = tf.math.top_k(tf.abs(vector), count, sorted=False)
        entries = tf.cast(tf.gather(vector, positions), wide_type(vector.dtype))
        # Exactly zero where an entry was sent: no subtraction, no rounding.
        zeros = tf.zeros([count], vector.dtype)
        left = tf.tensor_scatter_nd_update(vector, positions[:, tf.newaxis], zeros)
        return Encoded([positions, entries], tf.reshape(left, value.shape), state)

    def decode(self, parts: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        positions, entries = parts
        vector = tf.zeros([spec.shape.num_elements()], wide_type(spec.dtype))
        vector = tf.tensor_scatter_nd_add(vector, positions[:, tf.newaxis], entries)
        return tf.cast(tf.reshape(vector, spec.shape), spec.dtype)

    def _num_entries(self, shape: tf.TensorShape) -> int:
        # Rounded up, so that every tensor sends an entry.
        return math.ceil(self._fraction * shape.num_elements())


def _sum_of(positions: tf.Tensor, words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns the sum of all replicas' entries in a tensor of zeros.

    Args:
      positions: int32 [replicas, entries].
      words: Entries as int32 words, [replicas, words].
      like: Tensor with the shape and type of the sum.
    """
    dtype = wide_type(like.dtype)
    total = tf.zeros([like.shape.num_elements()], dtype)
    for at, own in zip(tf.unstack(positions), tf.unstack(words), strict=True):
        # One replica after the other: the same order of a sum on every replica.
        if dtype == tf.float64:
            own = tf.reshape(own, [-1, 2])
        entries = tf.bitcast(own, dtype)
        total = tf.tensor_scatter_nd_add(total, at[:, tf.newaxis], entries)
    return tf.cast(tf.reshape(total, like.shape), like.dtype)
