"""A few examples for a look at a model's own step."""

import numpy as np
import tensorflow as tf

from strategies.common.types import Batch


def few_examples() -> Batch:
    """Returns four examples with five features each, and no labels."""
    features = np.random.default_rng(0).standard_normal((4, 5)).astype("float32")
    size = tf.constant(4, tf.int64)
    return Batch(
        step=tf.zeros([], tf.int64),
        replica=tf.zeros([], tf.int64),
        global_size=size,
        num_rows=size,
        indices=tf.range(size),
        features=tf.constant(features),
        labels=(),
    )
