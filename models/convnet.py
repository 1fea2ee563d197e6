"""A small convolutional network for images."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from models.base import classifier


def build(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    hidden_units: Sequence[int],
    dropout: float,
) -> keras.Model:
    """Two convolutions, each followed by pooling, then a dense layer and logits.

    Raises:
      ValueError: `input_shape` is not height x width x channels of 4x4 or more.
    """
    del hidden_units
    if len(input_shape) != 3 or min(input_shape[:2]) < 4:
        raise ValueError(
            "--model=convnet takes images of height x width x channels from 4x4 up; "
            f"the data set's examples have shape {tuple(input_shape)}: use --model=mlp."
        )
    images = keras.Input(tuple(input_shape), name="images")
    hidden = images
    for index, filters in enumerate((32, 64), start=1):
        hidden = keras.layers.Conv2D(
            filters, 3, padding="same", activation="relu", name=f"convolution_{index}"
        )(hidden)
        hidden = keras.layers.MaxPooling2D(name=f"pooling_{index}")(hidden)
    hidden = keras.layers.Flatten(name="flatten")(hidden)
    hidden = keras.layers.Dense(128, activation="relu", name="hidden")(hidden)
    if dropout:
        hidden = keras.layers.Dropout(dropout, name="dropout")(hidden)
    logits = keras.layers.Dense(num_classes, name="logits")(hidden)
    return keras.Model(images, logits, name="convnet")


SPEC = classifier(build)
