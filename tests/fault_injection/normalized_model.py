"""A model whose steps depend on all that a checkpoint keeps."""

import keras

from models.base import Examples


def model(data: Examples) -> keras.Model:
    """Returns a classifier with dropout and batch normalization."""
    layers = [
        keras.layers.Flatten(),
        keras.layers.Dense(32, use_bias=False),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.Activation("relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(data.num_classes, activation="softmax"),
    ]
    network = keras.Sequential([keras.Input(data.input_shape), *layers])
    network.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
