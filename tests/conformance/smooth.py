"""Models of the catalogue whose training does not depend on single bits of rounding.

Rounding decides whether a ReLU near zero is active, and which of two nearly equal
numbers is the larger. Two orders of addition then train differently from that step on,
and both are right. A bias that begins at zero is for many steps a small sum of large
terms that cancel, so that their rounding is up to 2e-6 of its norm (measured for a
convolution after 30 steps of SGD).
"""

import dataclasses

import keras

import models
from models.base import Examples, Settings
from models.classification import ModelSpec


def smooth(name: str) -> ModelSpec:
    """Returns a model of the catalogue with tanh for ReLU and averages for maxima.

    Its biases begin at random numbers.
    """
    spec = models.load(name)

    def build(data: Examples, settings: Settings) -> keras.Model:
        return keras.models.clone_model(
            spec.build(data, settings), clone_function=_smooth_layer
        )

    return dataclasses.replace(spec, build=build)


def _smooth_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    config = layer.get_config()
    if isinstance(layer, keras.layers.MaxPooling2D):
        return keras.layers.AveragePooling2D.from_config(config)
    if config.get("activation") == "relu":
        config["activation"] = "tanh"
    if "bias_initializer" in config:
        config["bias_initializer"] = keras.initializers.RandomNormal(stddev=0.3)
    return type(layer).from_config(config)
