"""Tests of the tutorial's network against the operations that the tutorial calls."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.cifar10 import LocalResponseNormalization, build
from trainers.config.model import ModelConfig
from trainers.inputs.sources import ArraySource, Data


def make_model(dropout: float = 0.0) -> keras.Model:
    nothing = ArraySource(np.zeros([1, 24, 24, 3], np.float32), np.zeros([1], np.int64))
    data = Data(
        train=nothing, evaluation=nothing, input_shape=(24, 24, 3), num_classes=10
    )
    return build(data, ModelConfig(model="cifar10", dropout=dropout))


def as_in_the_tutorial(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    """Returns the logits of the tutorial's `inference`, with the model's weights."""
    w = {
        variable.path: tf.convert_to_tensor(variable.value)
        for variable in model.weights
    }

    def convolved(name: str, inputs: tf.Tensor) -> tf.Tensor:
        outputs = tf.nn.conv2d(inputs, w[f"{name}/kernel"], 1, "SAME")
        return tf.nn.relu(tf.nn.bias_add(outputs, w[f"{name}/bias"]))

    def pooled(inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.max_pool(inputs, 3, 2, "SAME")

    def normalized(inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.lrn(inputs, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)

    def dense(name: str, inputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, w[f"{name}/kernel"]) + w[f"{name}/bias"]

    hidden = normalized(pooled(convolved("conv1", images)))
    hidden = pooled(normalized(convolved("conv2", hidden)))
    hidden = tf.reshape(hidden, [len(images), -1])
    hidden = tf.nn.relu(dense("local3", hidden))
    hidden = tf.nn.relu(dense("local4", hidden))
    return dense("softmax_linear", hidden)


def test_logits_are_those_of_the_tutorial() -> None:
    keras.utils.set_random_seed(0)
    model = make_model()
    images = tf.random.stateless_normal([4, 24, 24, 3], [1, 2])
    expected = as_in_the_tutorial(model, images)
    assert np.ptp(expected) > 0.01, "the logits are nearly equal, which shows nothing"
    # Sums in single precision are in another order.
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-5)


def test_weights_are_as_many_and_begin_as_in_the_tutorial() -> None:
    keras.utils.set_random_seed(0)
    model = make_model()
    assert model.count_params() == 1_068_298
    deviations = {
        "conv1": 0.05,
        "conv2": 0.05,
        "local3": 0.04,
        "local4": 0.04,
        "softmax_linear": 1 / 192,
    }
    biases = {"conv1": 0, "conv2": 0.1, "local3": 0.1, "local4": 0.1}
    for name, deviation in deviations.items():
        kernel, bias = model.get_layer(name).weights
        # Numbers beyond two deviations are drawn again, which leaves 0.88 of the
        # deviation. There are at least 1,920 numbers, so 10 % is six standard errors.
        assert np.std(kernel) == pytest.approx(0.88 * deviation, rel=0.1)
        assert np.abs(kernel).max() <= 2 * deviation
        np.testing.assert_array_equal(bias, np.float32(biases.get(name, 0)))


def test_dense_weights_decay_as_in_the_tutorial() -> None:
    model = make_model()
    decayed = [model.get_layer(name).kernel for name in ("local3", "local4")]
    expected = sum(0.004 * float(tf.nn.l2_loss(k.value)) for k in decayed)
    penalties = [float(penalty) for penalty in model.losses]
    assert len(penalties) == 2
    assert sum(penalties) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("channels", [3, 9, 64])
def test_normalization_and_its_gradient_are_those_of_tensorflow(channels: int) -> None:
    settings = {"bias": 1.5, "alpha": 0.3, "beta": 0.75}
    layer = LocalResponseNormalization(radius=4, **settings)
    values = tf.random.stateless_normal([2, 3, 3, channels], [3, 4])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(values)
        ours, theirs = layer(values), tf.nn.lrn(values, 4, **settings)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        tape.gradient(ours, values), tape.gradient(theirs, values), rtol=1e-4, atol=1e-5
    )


def test_dropout_is_between_the_dense_layers() -> None:
    names = [layer.name for layer in make_model(dropout=0.5).layers]
    assert names[-4:] == [
        "local3_dropout",
        "local4",
        "local4_dropout",
        "softmax_linear",
    ]
