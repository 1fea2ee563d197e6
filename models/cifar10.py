"""The CIFAR-10 network of the TensorFlow 1 tutorial.

Each layer is the same as in tensorflow/models, tutorials/image/cifar10/cifar10.py:
sizes, order of pooling and normalization, initial values and weight decay. The
tutorial's mean loss over the batch, learning rate and averages of the weights are not
part of the model and belong to the run.
"""

from typing import Any

import keras
import numpy as np

from models.base import Examples, Settings
from models.classification import classifier, dropout, require_images

# tf.nn.l2_loss is half the sum of squares, and the tutorial multiplies it by 0.004;
# Keras's L2 multiplies the whole sum.
_WEIGHT_DECAY = 0.004 / 2


@keras.saving.register_keras_serializable(package="models")
class LocalResponseNormalization(keras.layers.Layer):
    """Divides each value by a power of the squares of its neighboring channels.

    y = x / (bias + alpha * sum of x^2 over the nearest 2 radius + 1 channels) ^ beta:
    Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional
    Neural Networks, 2012, section 3.3. `tf.nn.lrn` has no float64; this layer adds up
    neighbors, as that operation does, by multiplying with a band of ones.
    """

    def __init__(
        self, radius: int, bias: float, alpha: float, beta: float, **settings: Any
    ):
        super().__init__(**settings)
        self._radius = radius
        self._bias = bias
        self._alpha = alpha
        self._beta = beta
        self._band: np.ndarray = np.zeros([0, 0])

    def build(self, input_shape: Any) -> None:
        """Builds the band matrix, which depends on the number of channels."""
        channels = np.arange(input_shape[-1])
        distance = np.abs(channels[:, np.newaxis] - channels)
        # [channels, channels], 1 where two channels are neighbors.
        self._band = (distance <= self._radius).astype(np.float64)

    def call(self, inputs: Any) -> Any:
        """Normalizes values [n, height, width, channels]."""
        band = keras.ops.cast(self._band, inputs.dtype)
        sums = keras.ops.matmul(keras.ops.square(inputs), band)
        return inputs * keras.ops.power(self._bias + self._alpha * sums, -self._beta)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "radius": self._radius,
            "bias": self._bias,
            "alpha": self._alpha,
            "beta": self._beta,
        }


def build(data: Examples, settings: Settings) -> keras.Model:
    """Builds two convolutions, pooled and normalized, and three dense layers."""
    require_images("cifar10", data, smallest=4)
    images = keras.Input(data.input_shape, name="images")
    hidden = _convolution("conv1", bias=0.0)(images)
    # The tutorial pools before it normalizes here, and after it in the second block.
    hidden = _normalization("norm1")(_pooling("pool1")(hidden))
    hidden = _convolution("conv2", bias=0.1)(hidden)
    hidden = _pooling("pool2")(_normalization("norm2")(hidden))
    hidden = keras.layers.Flatten(name="flatten")(hidden)
    for index, (name, units) in enumerate((("local3", 384), ("local4", 192))):
        hidden = keras.layers.Dense(
            units,
            activation="relu",
            kernel_initializer=_normal(0.04),
            bias_initializer=keras.initializers.Constant(0.1),
            kernel_regularizer=keras.regularizers.L2(_WEIGHT_DECAY),
            name=name,
        )(hidden)
        if settings.dropout:
            hidden = dropout(settings.dropout, f"{name}_dropout", seed=index)(hidden)
    logits = keras.layers.Dense(
        data.num_classes, kernel_initializer=_normal(1 / 192), name="softmax_linear"
    )(hidden)
    return keras.Model(images, logits, name="cifar10")


def _convolution(name: str, bias: float) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        64,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=_normal(0.05),
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
    )


def _pooling(name: str) -> keras.layers.Layer:
    return keras.layers.MaxPooling2D(3, strides=2, padding="same", name=name)


def _normalization(name: str) -> keras.layers.Layer:
    # A radius of 4 sums over 9 channels; alpha is divided by their number.
    return LocalResponseNormalization(
        radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75, name=name
    )


def _normal(deviation: float) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=deviation)


SETTINGS = ("dropout",)
SPEC = classifier(build)
