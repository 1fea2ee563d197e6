"""Models in half precision, as their module or their factory asks for it."""

from typing import Any

import keras
import numpy as np

from tests.trainers.user_code import factories

RATE = 0.01


def data() -> tuple[np.ndarray, np.ndarray]:
    """Labels so large that the first gradients are beyond float16 when scaled."""
    features, _ = factories.arrays()
    return features, 50 * features[:, :2]


def _layers(first: str, last: str) -> keras.Model:
    inputs = keras.Input([5])
    hidden = keras.layers.Dense(8, activation="tanh", dtype=first)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, dtype=last)(hidden))
    model.compile("sgd", loss="mse")
    return model


def by_policy() -> keras.Model:
    """Sets the policy of all layers, as scripts do before they make a model."""
    keras.config.set_dtype_policy("mixed_float16")
    return _layers("mixed_float16", "mixed_float16")


def growing() -> keras.Model:
    """Returns a model whose scale is small, and doubled every three steps."""
    model = by_policy()
    inner = keras.optimizers.SGD(RATE)
    model.compile(
        keras.optimizers.LossScaleOptimizer(inner, 4.0, dynamic_growth_steps=3), "mse"
    )
    return model


def by_layer() -> keras.Model:
    """Returns a model with one layer in half precision and one in single."""
    return _layers("mixed_float16", "float32")


def bfloat16() -> keras.Model:
    keras.config.set_dtype_policy("mixed_bfloat16")
    return _layers("mixed_bfloat16", "mixed_bfloat16")


def double_layer() -> keras.Model:
    return _layers("float32", "float64")


class Hopeless(keras.layers.Layer):
    """A finite value whose gradient is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.add_weight(shape=(), initializer="zeros")

    def call(self, inputs: Any) -> Any:
        return inputs + keras.ops.cast(keras.ops.sqrt(self.scale), inputs.dtype)


def hopeless() -> keras.Model:
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.layers.Dense(2), Hopeless()])
    model.compile("sgd", loss="mse")
    return model
