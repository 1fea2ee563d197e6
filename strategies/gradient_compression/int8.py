"""Gradients as 8-bit integers, with a scale for each block of a tensor."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from strategies.common.private_apis.collectives import exchange_rows
from strategies.common.types import ReplicaOutputs
from strategies.gradient_compression.method import (
    Encoded,
    Method,
    Reduced,
    gather_vectors,
    wide_type,
)
from strategies.inner_loop.all_reduce import all_reduce_packed

# A scale of 4 bytes for 256 numbers adds 1.6 % to the bytes. Smaller tensors are sent
# as they are.
_BLOCK = 256
_LARGEST = 127
# Below this, single precision has no full number of digits.
_SMALLEST_SCALE = 1.2e-38
_WORD_BYTES = 4


class Quantized(NamedTuple):
    """Numbers in blocks, each rounded to a multiple of the scale of its block.

    Attributes:
      multiples: int8 [..., blocks, numbers].
      scales: float32 [..., blocks].
    """

    multiples: tf.Tensor
    scales: tf.Tensor


class Int8(Method):
    """Sums gradients over replicas as 8-bit integers.

    Integers with different scales cannot be added up on the way, and a sum of several
    would not fit into 8 bits. So replica i receives part i of all replicas' integers,
    adds up what they stand for, rounds the sum to 8 bits again, and sends it to all
    others: 2 (N - 1) / N bytes for each number, as a ring all-reduce of bytes. An
    all-gather of all integers would send N - 1 bytes: as many for two replicas, and for
    eight as many as uncompressed float32 gradients.
    """

    name = "int8"
    collectives = "all-to-all and ring all-gather"

    def compresses(self, spec: tf.TensorSpec) -> bool:
        return spec.shape.num_elements() >= _BLOCK

    def bytes_sent(self, specs: Sequence[tf.TensorSpec], num_replicas: int) -> float:
        sizes = [spec.shape.num_elements() for spec in specs]
        # As `_in_blocks` pads: whole blocks for each tensor, equal parts for each
        # replica.
        part = -(-sum(map(_num_blocks, sizes)) // num_replicas)
        words = part * (_BLOCK // _WORD_BYTES + 1)
        return 2 * (num_replicas - 1) * words * _WORD_BYTES

    def reduce(
        self,
        context: tf.distribute.ReplicaContext,
        values: Sequence[tf.Tensor],
        state: Sequence[Sequence[tf.Tensor]],
        others: ReplicaOutputs,
    ) -> Reduced:
        # Before the integers: it is the shortest message, and every replica sends it at
        # the same place of the program.
        others = all_reduce_packed(context, others)
        blocks = _in_blocks(values, context.num_replicas_in_sync)
        sent = _quantized(blocks)
        # Row i of `received` is what replica i has sent of this replica's part.
        words = _packed(sent)
        received = tf.ensure_shape(exchange_rows(context, words), words.shape)
        received = _unpacked(received)
        part = tf.reduce_sum(_numbers(received, blocks.dtype), axis=0, keepdims=True)
        rounded = _quantized(part)
        gathered = _unpacked(gather_vectors(context, _packed(rounded)[0]))
        sums = _numbers(gathered, blocks.dtype)
        # What the second rounding drops is kept by the replica that has rounded.
        errors = tf.tensor_scatter_nd_add(
            blocks - _numbers(sent, blocks.dtype),
            tf.reshape(context.replica_id_in_sync_group, [1, 1]),
            part - _numbers(rounded, blocks.dtype),
        )
        return Reduced(
            others=others,
            sums=_as_values(sums, values),
            errors=_as_values(errors, values),
            state=state,
        )

    def encode(self, value: tf.Tensor, state: Sequence[tf.Tensor]) -> Encoded:
        blocks = _in_blocks([value], num_parts=1)
        sent = _quantized(blocks)
        (error,) = _as_values(blocks - _numbers(sent, blocks.dtype), [value])
        return Encoded(sent, error, state)

    def decode(self, parts: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        blocks = _numbers(Quantized(*parts), wide_type(spec.dtype))
        (value,) = _as_values(blocks, [spec])
        return value


def _num_blocks(size: int) -> int:
    return -(-size // _BLOCK)


def _in_blocks(values: Sequence[tf.Tensor], num_parts: int) -> tf.Tensor:
    """Returns all numbers, [parts, blocks, numbers]; zero where there are no more."""
    is_double = any(value.dtype == tf.float64 for value in values)
    dtype = tf.float64 if is_double else tf.float32
    vectors = []
    for value in values:
        # Each tensor begins a block, so that a scale is of one tensor alone.
        size = value.shape.num_elements()
        vector = tf.reshape(tf.cast(value, dtype), [-1])
        vectors.append(tf.pad(vector, [[0, _num_blocks(size) * _BLOCK - size]]))
    num_blocks = sum(v.shape[0] // _BLOCK for v in vectors)
    # Parts have to be equally long.
    missing = -num_blocks % num_parts
    vectors.append(tf.zeros([missing * _BLOCK], dtype))
    return tf.reshape(tf.concat(vectors, axis=0), [num_parts, -1, _BLOCK])


def _as_values(
    blocks: tf.Tensor, values: Sequence[tf.Tensor | tf.TensorSpec]
) -> list[tf.Tensor]:
    """Returns the tensors that `_in_blocks` has put into blocks."""
    vector = tf.reshape(blocks, [-1])
    found, start = [], 0
    for value in values:
        size = math.prod(value.shape)
        part = tf.reshape(vector[start : start + size], value.shape)
        found.append(tf.cast(part, value.dtype))
        start += _num_blocks(size) * _BLOCK
    return found


def _quantized(blocks: tf.Tensor) -> Quantized:
    largest = tf.reduce_max(tf.abs(blocks), axis=-1)
    scales = tf.cast(largest / _LARGEST, tf.float32)
    # A denormal scale would have too few digits to divide by.
    scales = tf.where(scales < _SMALLEST_SCALE, tf.zeros_like(scales), scales)
    divisors = tf.where(scales > 0, scales, tf.ones_like(scales))
    multiples = tf.round(blocks / tf.cast(divisors, blocks.dtype)[..., tf.newaxis])
    # Numbers of a block without a scale are smaller than any rounding.
    return Quantized(tf.cast(multiples, tf.int8), scales)


def _numbers(quantized: Quantized, dtype: tf.DType) -> tf.Tensor:
    """Returns the numbers that integers and scales stand for, in blocks."""
    scales = tf.cast(quantized.scales, dtype)[..., tf.newaxis]
    return tf.cast(quantized.multiples, dtype) * scales


def _packed(quantized: Quantized) -> tf.Tensor:
    """Returns integers and scales as int32 words, [parts, words].

    Collectives send no 8-bit integers.
    """
    parts, blocks, _ = quantized.multiples.shape
    fours = tf.reshape(quantized.multiples, [parts, -1, _WORD_BYTES])
    scales = tf.reshape(tf.bitcast(quantized.scales, tf.int32), [parts, blocks])
    return tf.concat([tf.bitcast(fours, tf.int32), scales], axis=1)


def _unpacked(words: tf.Tensor) -> Quantized:
    """Returns what `_packed` has put into words."""
    parts, length = words.shape
    blocks = length // (_BLOCK // _WORD_BYTES + 1)
    multiples = tf.bitcast(words[:, : length - blocks], tf.int8)
    scales = tf.bitcast(words[:, length - blocks :], tf.float32)
    return Quantized(tf.reshape(multiples, [parts, blocks, _BLOCK]), scales)
