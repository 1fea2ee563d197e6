"""Random numbers that depend on named things alone, such as an example's index.

A hash of whole numbers takes the place of a stateful generator, so that the same
example gets the same numbers in any process, in any row of any batch. It is
SplitMix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators,
2014, figure 17, with the constants of Vigna's version.
"""

from __future__ import annotations

import tensorflow as tf

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
# Numbers in [0, 1) that double precision holds exactly.
_MANTISSA_BITS = 53


def key_of(*words: int | tf.Tensor) -> tf.Tensor:
    """A uint64 that no other sequence of words of this length is likely to have.

    Args:
      *words: not negative; int64 scalars where they are tensors.
    """
    # tf.cast would take a Python number for an int32 first.
    first, *others = (
        constant(word) if isinstance(word, int) else tf.cast(word, tf.uint64)
        for word in words
    )
    key = _mix(first)
    for word in others:
        key = _absorb(key, word)
    return key


def hashes_of_rows(
    key: tf.Tensor, examples: tf.Tensor, count: int | tf.Tensor
) -> tf.Tensor:
    """Evenly distributed uint64 [rows, count]. Row i depends on examples[i] alone.

    Args:
      key: from `key_of`.
      examples: int64 [rows], indices in the data set.
      count: numbers for each example.
    """
    row_keys = _absorb(key, tf.cast(examples, tf.uint64))
    positions = tf.cast(tf.range(1, tf.cast(count, tf.int64) + 1), tf.uint64)
    # Each row is SplitMix64's own sequence, started from the row's key.
    return _mix(row_keys[:, tf.newaxis] + positions * constant(_GOLDEN_GAMMA))


def uniform_of_rows(key: tf.Tensor, examples: tf.Tensor, count: int) -> tf.Tensor:
    """The same as numbers from 0 up to, but not including, 1: float64 [rows, count]."""
    bits = tf.bitwise.right_shift(
        hashes_of_rows(key, examples, count), constant(64 - _MANTISSA_BITS)
    )
    return tf.cast(bits, tf.float64) * 2.0**-_MANTISSA_BITS


def constant(value: int) -> tf.Tensor:
    """A uint64 scalar, also where the number does not fit an int64."""
    return tf.constant(value, tf.uint64)


def _absorb(key: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
    """Different words give different keys, because mixing can be undone."""
    mixed = tf.bitwise.bitwise_xor(key, word)
    return _mix(mixed + constant(_GOLDEN_GAMMA))


def _mix(value: tf.Tensor) -> tf.Tensor:
    for shift, factor in _MIXING:
        value = _xor_shift(value, shift) * constant(factor)
    return _xor_shift(value, _LAST_SHIFT)


def _xor_shift(value: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(value, constant(shift))
    return tf.bitwise.bitwise_xor(value, shifted)
