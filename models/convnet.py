"""A small convolutional network for images."""

import keras

from models.base import Examples, Settings
from models.classification import classifier, dropout, require_images


def build(data: Examples, settings: Settings) -> keras.Model:
    """Builds two convolutions with pooling, then a dense layer and logits."""
    # Each of two poolings halves height and width.
    require_images("convnet", data, smallest=4)
    images = keras.Input(data.input_shape, name="images")
    hidden = images
    for index, filters in enumerate((32, 64), start=1):
        hidden = keras.layers.Conv2D(
            filters, 3, padding="same", activation="relu", name=f"convolution_{index}"
        )(hidden)
        hidden = keras.layers.MaxPooling2D(name=f"pooling_{index}")(hidden)
    hidden = keras.layers.Flatten(name="flatten")(hidden)
    hidden = keras.layers.Dense(128, activation="relu", name="hidden")(hidden)
    if settings.dropout:
        hidden = dropout(settings.dropout, "dropout", seed=1)(hidden)
    logits = keras.layers.Dense(data.num_classes, name="logits")(hidden)
    return keras.Model(images, logits, name="convnet")


SETTINGS = ("dropout",)
SPEC = classifier(build)
