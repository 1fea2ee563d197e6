"""A model with two outputs: the digit that an image shows, and its amount of ink.

  python -m trainers.main --model=examples.multi_output:model \
    --dataset=examples.multi_output:digits --strategy=tower --num_replicas=2

Weights are regularized, and the second loss is a custom function.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def digits() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns images [n, 8, 8, 1], their digits [n] and mean brightness [n, 1]."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    ink = images.mean(axis=1, keepdims=True)
    return images.reshape(-1, 8, 8, 1), {"digit": labels, "ink": ink}


def relative_error(true: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
    """Returns the loss of each example, [n]."""
    return tf.reduce_mean(tf.abs(predicted - true) / true, axis=-1)


def model() -> keras.Model:
    """Builds a model whose outputs share a convolution."""
    images = keras.Input([8, 8, 1], name="images")
    shared = keras.layers.Conv2D(
        16, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)
    )(images)
    shared = keras.layers.Flatten()(shared)
    made = keras.Model(
        images,
        {
            "digit": keras.layers.Dense(10, activation="softmax")(shared),
            "ink": keras.layers.Dense(1, activation="softplus")(shared),
        },
    )
    made.compile(
        loss={"digit": "sparse_categorical_crossentropy", "ink": relative_error},
        loss_weights={"digit": 1.0, "ink": 0.5},
        metrics={"digit": ["accuracy"], "ink": ["mean_absolute_error"]},
    )
    return made
