"""Models with layers that were made outside of their factory, by a module."""

import functools
from typing import Any

import keras

from tests.trainers.user_code import factories

_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Around(keras.Model):
    """A subclassed model around a layer."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__()
        self.layer = layer
        self.logits = keras.layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.logits(self.layer(inputs, training=training))


class Scaled(keras.Model):
    """A subclassed model that trains a variable which it is given."""

    def __init__(self, scale: keras.Variable) -> None:
        super().__init__()
        self.scale = scale
        self.logits = keras.layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.logits(inputs * self.scale)


def _connected(name: str) -> keras.Model:
    inputs = keras.Input([5])
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    normal = keras.layers.BatchNormalization()(hidden)
    dropped = keras.layers.Dropout(0.1, seed=3)(normal)
    return keras.Model(inputs, keras.layers.Dense(3)(dropped), name=name)


UNBUILT_LAYER = keras.layers.Dense(8, activation="tanh")
BUILT_LAYER = keras.layers.Dense(8, activation="tanh")
BUILT_LAYER.build((None, 5))
SCALE = keras.Variable([1.0, 2.0, 3.0, 4.0, 5.0])
WHOLE = _connected("whole")
BACKBONE = _connected("backbone")
SUBCLASSED = Around(keras.layers.Dense(8, activation="tanh"))
SUBCLASSED(factories.arrays()[0])
NOT_CALLED = Around(keras.layers.Dense(8, activation="tanh"))


@functools.cache
def once() -> keras.Model:
    """Returns the same model at every call."""
    return compiled(_connected("once"))


def compiled(model: keras.Model) -> keras.Model:
    model.compile(loss=_LOSS, metrics=["accuracy"])
    return model


def unbuilt_layer() -> keras.Model:
    return compiled(keras.Sequential([UNBUILT_LAYER, keras.layers.Dense(3)]))


def built_layer() -> keras.Model:
    return compiled(keras.Sequential([BUILT_LAYER, keras.layers.Dense(3)]))


def layer_of_a_subclass() -> keras.Model:
    return compiled(Around(BUILT_LAYER))


def variable() -> keras.Model:
    return compiled(Scaled(SCALE))


def whole() -> keras.Model:
    return compiled(WHOLE)


def backbone() -> keras.Model:
    BACKBONE.trainable = False
    inputs = keras.Input([5])
    outputs = keras.layers.Dense(3)(BACKBONE(inputs))
    return compiled(keras.Model(inputs, outputs))


def subclassed() -> keras.Model:
    return compiled(SUBCLASSED)


def not_called() -> keras.Model:
    return compiled(NOT_CALLED)
