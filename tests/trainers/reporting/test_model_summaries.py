"""Histograms of weights and activations."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.inputs.sources import ArraySource, Data
from trainers.reporting.model_summaries import Inspection


class Sparse(keras.layers.Layer):
    """Its output is a `tf.SparseTensor`, as that of `IntegerLookup(sparse=True)`."""

    def call(self, values: tf.Tensor) -> tf.SparseTensor:
        return tf.sparse.from_dense(values)

    def compute_output_spec(self, values: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor(values.shape, values.dtype, sparse=True)


class Spectrum(keras.layers.Layer):
    """Its output is complex."""

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return tf.signal.rfft(values)

    def compute_output_spec(self, values: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((*values.shape[:-1], 3), "complex64")


class Signs(keras.layers.Layer):
    """Has weights of -1 and 1 (Hubara et al., Binarized Neural Networks, 2016)."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 2), name="kernel")

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return values @ _signs(self.kernel)


@tf.custom_gradient
def _signs(weights: tf.Tensor) -> tuple[tf.Tensor, Any]:
    return tf.sign(weights), lambda upstream: upstream


class Calls(keras.layers.Layer):
    """Counts its calls."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.count = self.add_weight(initializer="zeros", trainable=False)

    def call(self, values: tf.Tensor) -> tf.Tensor:
        self.count.assign_add(1)
        return values


def _data() -> Data:
    source = ArraySource(np.ones((8, 4), np.float32), np.zeros(8, np.int64))
    return Data(train=source, evaluation=source, input_shape=(4,), num_classes=2)


def test_histograms_change_no_state_of_a_layer() -> None:
    model = keras.Sequential([keras.Input((4,)), Calls()])
    assert Inspection(model, _data()).histograms()
    assert [float(variable.numpy()) for variable in model.variables] == [0.0]


def test_a_layer_that_needs_a_graph_has_a_histogram() -> None:
    model = keras.Sequential([keras.Input((4,)), Signs(name="signs")])
    assert "activations/signs" in Inspection(model, _data()).histograms()


@pytest.mark.parametrize("layer", [Sparse(name="other"), Spectrum(name="other")])
def test_outputs_without_real_numbers_have_no_histogram(
    layer: keras.layers.Layer,
) -> None:
    features = keras.Input((4,))
    hidden = keras.layers.Dense(4, name="hidden")(features)
    last = keras.layers.Lambda(_real, output_shape=(4,), name="last")
    model = keras.Model(features, last(layer(hidden)))
    tags = set(Inspection(model, _data()).histograms())
    assert {tag for tag in tags if tag.startswith("activations/")} == {
        "activations/hidden",
        "activations/last",
    }


def _real(values: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    if isinstance(values, tf.SparseTensor):
        return tf.sparse.to_dense(values)
    return tf.abs(values) if values.dtype.is_complex else values
