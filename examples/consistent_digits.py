"""A training step of one's own: an image and its copy moved aside must look alike.

  python -m trainers.main --model=examples.consistent_digits:model --strategy=mirrored

The function `replica_step` beside the model takes the place of loss and metrics: it
returns them for each example, and everything else stays as it is: shares of the global
batch, their sum, clipping, checkpoints, summaries.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from strategies.common.types import Batch

_WEIGHT = 0.5


def model() -> keras.Model:
    """Logits of ten digits, [n, 10], from images [n, 8, 8, 1]."""
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def replica_step(
    model: keras.Model, batch: Batch, training: bool
) -> dict[str, tf.Tensor]:
    """The loss and metrics of each example of a replica's part of the batch, [n]."""
    logits = model(batch.features, training=training)
    moved = model(tf.roll(batch.features, shift=1, axis=2), training=training)
    cross_entropy = keras.losses.sparse_categorical_crossentropy(
        batch.labels, logits, from_logits=True
    )
    difference = tf.reduce_mean(tf.square(logits - moved), axis=-1)
    right = tf.equal(tf.argmax(logits, axis=-1), batch.labels)
    return {
        "loss": cross_entropy + _WEIGHT * difference,
        "accuracy": tf.cast(right, tf.float32),
        "difference": difference,
    }
