"""Low-rank compression of gradients by one power iteration: PowerSGD.

Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization, 2019.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.update_exchange import ring_factor
from strategies.common.types import ReplicaOutputs
from strategies.gradient_compression.method import (
    Encoded,
    Method,
    Reduced,
    wide_type,
)
from strategies.inner_loop.all_reduce import all_reduce_packed, sum_by_type


class PowerSgd(Method):
    """Sums a matrix M over replicas as P Q^T.

    P is an orthonormal basis of the columns of (sum of all M) Q, with the Q of the step
    before. The new Q is the sum of all M^T P: two all-reduces, one after the other. As
    Q is linear in M, each replica's error is its M without its projection on P.

    To a server each worker sends P and Q of the worker's M: a common basis would take
    a second exchange in each step.
    """

    collectives = "ring all-reduce"

    def __init__(self, rank: int):
        self._rank = rank
        self.name = f"PowerSGD of rank {rank}"

    def compresses(self, spec: tf.TensorSpec) -> bool:
        if spec.shape.rank < 2:
            return False
        rows, columns = _matrix_shape(spec)
        # P is [rows, rank], Q is [columns, rank].
        return self._rank * (rows + columns) < rows * columns

    def remedy(self, specs: Sequence[tf.TensorSpec]) -> str:
        ranks = [0]
        for spec in specs:
            if spec.shape.rank >= 2:
                # The largest rank for which `compresses` is true.
                rows, columns = _matrix_shape(spec)
                ranks.append((rows * columns - 1) // (rows + columns))
        lower = f"lower the rank to at most {max(ranks)}, or "
        return (lower if max(ranks) else "") + super().remedy(specs)

    def initial_state(self, spec: tf.TensorSpec, seed: int) -> Sequence[tf.Tensor]:
        _, columns = _matrix_shape(spec)
        # The same on every replica. A multiple of any column is as good: only the space
        # that the columns span matters.
        start = tf.random.stateless_normal(
            [columns, self._rank], seed=[0, seed], dtype=tf.float32
        )
        return [_orthonormal(tf.cast(start, spec.dtype))]

    def bytes_sent(self, specs: Sequence[tf.TensorSpec], num_replicas: int) -> float:
        sizes = [
            spec.dtype.size * self._rank * sum(_matrix_shape(spec)) for spec in specs
        ]
        return ring_factor(num_replicas) * sum(sizes)

    def reduce(
        self,
        context: tf.distribute.ReplicaContext,
        values: Sequence[tf.Tensor],
        state: Sequence[Sequence[tf.Tensor]],
        others: ReplicaOutputs,
    ) -> Reduced:
        # A convolution's kernel is a matrix from inputs in its window to output
        # channels.
        matrices = [_as_matrix(value) for value in values]
        lefts = [m @ q for m, (q,) in zip(matrices, state, strict=True)]
        # P travels with all that is not compressed, in one collective.
        others = others._replace(gradients=[*others.gradients, *lefts])
        others = all_reduce_packed(context, others)
        first = len(others.gradients) - len(values)
        bases = [_orthonormal(p) for p in others.gradients[first:]]
        # Equal on every replica to the last bit, because all have decomposed the same
        # sum. Q needs this basis of all, so that the second sum cannot travel with the
        # first.
        own = [
            tf.matmul(m, p, transpose_a=True)
            for m, p in zip(matrices, bases, strict=True)
        ]
        # The sum of all M^T P is (sum of all M)^T P, as every replica has the same P.
        rights = sum_by_type(context, own)

        def in_shape(position: int, matrix: tf.Tensor) -> tf.Tensor:
            return tf.reshape(matrix, values[position].shape)

        return Reduced(
            others=others._replace(gradients=others.gradients[:first]),
            sums=[
                in_shape(i, tf.matmul(p, q, transpose_b=True))
                for i, (p, q) in enumerate(zip(bases, rights, strict=True))
            ],
            errors=[
                in_shape(i, m - tf.matmul(p, q, transpose_b=True))
                for i, (m, p, q) in enumerate(zip(matrices, bases, own, strict=True))
            ],
            state=[[_orthonormal(q)] for q in rights],
        )

    def encode(self, value: tf.Tensor, state: Sequence[tf.Tensor]) -> Encoded:
        matrix, (start,) = _as_matrix(value), state
        basis = _orthonormal(matrix @ start)
        own = tf.matmul(matrix, basis, transpose_a=True)
        error = matrix - tf.matmul(basis, own, transpose_b=True)
        return Encoded(
            [basis, own], tf.reshape(error, value.shape), [_orthonormal(own)]
        )

    def decode(self, parts: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        basis, own = parts
        return tf.reshape(tf.matmul(basis, own, transpose_b=True), spec.shape)


def _as_matrix(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(value, [-1, value.shape[-1]])


def _matrix_shape(spec: tf.TensorSpec) -> tuple[int, int]:
    """Returns rows and columns of a gradient, whose last axis makes the columns."""
    *rows, columns = spec.shape.as_list()
    return math.prod(rows), columns


def _orthonormal(matrix: tf.Tensor) -> tf.Tensor:
    """Returns an orthonormal basis of the columns of a tall matrix.

    Householder's reflections complete the basis if columns are zero or dependent, so
    that a gradient of zero does not end a power iteration.
    """
    # There is no decomposition of half-precision matrices.
    basis, _ = tf.linalg.qr(tf.cast(matrix, wide_type(matrix.dtype)))
    return tf.cast(basis, matrix.dtype)
