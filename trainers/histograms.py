"""Histograms computed where the tensor is, so that only a few numbers move."""

from __future__ import annotations

import tensorflow as tf

NUM_BUCKETS = 30


def histogram(values: tf.Tensor) -> tf.Tensor:
    """Counts values in equally wide buckets between the smallest and the largest.

    Values that are not finite are left out: tf.histogram_fixed_width ends the
    process with SIGSEGV on an infinite one (TensorFlow 2.21).

    Args:
      values: floating point tensor of any shape.

    Returns:
      float64 [NUM_BUCKETS, 3]: left edge, right edge and count of each bucket, the
      layout of TensorBoard's histogram plugin; zeros if there is nothing to count.
    """
    values = tf.cast(tf.reshape(values, [-1]), tf.float64)
    finite = tf.boolean_mask(values, tf.math.is_finite(values))
    return tf.cond(tf.size(finite) > 0, lambda: _count(finite), no_histogram)


def _count(values: tf.Tensor) -> tf.Tensor:
    low, high = tf.reduce_min(values), tf.reduce_max(values)
    # A tensor of equal values still needs buckets of some width, which from 1e16 on
    # adding one would not give them.
    high = tf.where(high > low, high, low + tf.maximum(1e-3 * tf.abs(low), 1))
    edges = tf.linspace(low, high, NUM_BUCKETS + 1)
    counts = tf.histogram_fixed_width(values, [low, high], NUM_BUCKETS)
    return tf.stack([edges[:-1], edges[1:], tf.cast(counts, tf.float64)], axis=1)


def no_histogram() -> tf.Tensor:
    """What stands for a histogram that was not asked for."""
    return tf.zeros([NUM_BUCKETS, 3], tf.float64)
