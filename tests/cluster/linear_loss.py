"""A loss that is linear in the weights, so that gradients are the features.

So a test knows the gradient of every replica and step without a training.
"""

import math

import keras
import numpy as np

# Shapes that compression methods treat differently: large, short, and of four axes.
SHAPES = {"matrix": (20, 30), "vector": (30,), "kernel": (3, 3, 4, 10)}
SIZES = {name: math.prod(shape) for name, shape in SHAPES.items()}
NUM_EXAMPLES = 24


@keras.saving.register_keras_serializable("linear_loss")
class Products(keras.layers.Layer):
    """A layer that returns the sum of all products of a weight and a feature."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        del input_shape
        self.parts = [
            self.add_weight(shape=shape, initializer="zeros", name=name)
            for name, shape in SHAPES.items()
        ]

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        flat = [keras.ops.reshape(part, [-1, 1]) for part in self.parts]
        return inputs @ keras.ops.concatenate(flat, axis=0)


def model() -> keras.Model:
    network = keras.Sequential([keras.Input([sum(SIZES.values())]), Products()])
    network.compile(loss=lambda labels, outputs: keras.ops.mean(outputs, axis=-1))
    return network


def overflowing() -> keras.Model:
    """Returns the model in half precision, with a scale that grows until it is large.

    It is doubled after each step, so that gradients of many steps overflow once.
    """
    keras.config.set_dtype_policy("mixed_float16")
    network = model()
    inner = keras.optimizers.SGD(1.0)
    network.compile(
        keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=1),
        loss=network.loss,
    )
    return network


def features() -> np.ndarray:
    """Returns gradients of examples [n, sizes], of several magnitudes and full rank."""
    random = np.random.default_rng(seed=3)
    shape = (NUM_EXAMPLES, sum(SIZES.values()))
    return random.normal(size=shape) * np.exp(random.normal(size=shape))


def data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    labels = np.zeros([NUM_EXAMPLES, 1])
    return (features(), labels), (features()[:4], labels[:4])


def parts_of(vector: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the gradient of each weight from a sum of some examples' features."""
    ends = np.cumsum(list(SIZES.values()))[:-1]
    parts = zip(SHAPES.items(), np.split(vector, ends), strict=True)
    return {name: part.reshape(shape) for (name, shape), part in parts}
