"""Histograms of weights and activations."""

from __future__ import annotations

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


@pytest.mark.parametrize("layer", [Sparse(name="other"), Spectrum(name="other")])
def test_outputs_without_real_numbers_have_no_histogram(
    layer: keras.layers.Layer,
) -> None:
    features = keras.Input((4,))
    hidden = keras.layers.Dense(4, name="hidden")(features)
    last = keras.layers.Lambda(_real, output_shape=(4,), name="last")
    model = keras.Model(features, last(layer(hidden)))
    source = ArraySource(np.ones((8, 4), np.float32), np.zeros(8, np.int64))
    data = Data(train=source, evaluation=source, input_shape=(4,), num_classes=2)
    tags = set(Inspection(model, data).histograms())
    assert {tag for tag in tags if tag.startswith("activations/")} == {
        "activations/hidden",
        "activations/last",
    }


def _real(values: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    if isinstance(values, tf.SparseTensor):
        return tf.sparse.to_dense(values)
    return tf.abs(values) if values.dtype.is_complex else values
