"""Stateless random numbers from named things, such as an example's index.

A hash of whole numbers takes the place of a stateful generator, so that the same
example gets the same numbers in any process, in any row of any batch. The hash is
SplitMix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators,
2014, figure 17, with the constants of Vigna's version.
"""

import tensorflow as tf

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
# Double precision holds every multiple of 2**-53 in [0, 1) exactly.
_MANTISSA_BITS = 53


def key_of(*words: int | tf.Tensor) -> tf.Tensor:
    """Returns a uint64 key of a sequence of words.

    Another sequence of the same length is unlikely to have the same key.

    Args:
      *words: Numbers that are not negative; tensors are int64 scalars.
    """
    # tf.cast would first convert a Python number to int32, which may be too small.
    first, *others = (
        constant(word) if isinstance(word, int) else tf.cast(word, tf.uint64)
        for word in words
    )
    key = _mix(first)
    for word in others:
        key = _absorb(key, word)
    return key


def _hashes_of_rows(
    key: tf.Tensor, examples: tf.Tensor, count: int | tf.Tensor
) -> tf.Tensor:
    """Returns evenly distributed uint64 numbers [rows, count].

    Row i depends on the key and on examples[i] alone.

    Args:
      key: Result of `key_of`.
      examples: Indices in the data set, int64 [rows].
      count: Number of hashes for each example.
    """
    row_keys = _absorb(key, tf.cast(examples, tf.uint64))
    positions = tf.cast(tf.range(1, tf.cast(count, tf.int64) + 1), tf.uint64)
    # Each row is the sequence of SplitMix64 with the row's key as the seed: [rows, 1]
    # plus [count] broadcasts to [rows, count].
    return _mix(row_keys[:, tf.newaxis] + positions * constant(_GOLDEN_GAMMA))


def uniform_of_rows(key: tf.Tensor, examples: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the hashes as numbers in [0, 1), float64 [rows, count]."""
    # The upper bits stay, so that the conversion to float64 does not round up to 1.
    bits = tf.bitwise.right_shift(
        _hashes_of_rows(key, examples, count), constant(64 - _MANTISSA_BITS)
    )
    return tf.cast(bits, tf.float64) * 2.0**-_MANTISSA_BITS


def constant(value: int) -> tf.Tensor:
    """Returns a uint64 scalar; the number may be too large for int64."""
    return tf.constant(value, tf.uint64)


def _absorb(key: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
    """Returns a key that depends on an earlier key and on one more word."""
    # Mixing can be undone, so that different words give different keys.
    mixed = tf.bitwise.bitwise_xor(key, word)
    return _mix(mixed + constant(_GOLDEN_GAMMA))


def _mix(value: tf.Tensor) -> tf.Tensor:
    for shift, factor in _MIXING:
        value = _xor_shift(value, shift) * constant(factor)
    return _xor_shift(value, _LAST_SHIFT)


def _xor_shift(value: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(value, constant(shift))
    return tf.bitwise.bitwise_xor(value, shifted)
