"""A look inside the model: histograms of weights and activations, samples."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainers.histograms import histogram
from trainers.inputs.data import Data
from trainers.sample_images import can_draw, draw_grid

_NUM_SAMPLES = 32


class Inspection:
    """Looks at a model through the first examples held out for evaluation."""

    def __init__(self, model: keras.Model, data: Data):
        self._model = model
        count = min(_NUM_SAMPLES, data.evaluation.num_examples)
        self._features, self._labels = data.evaluation.read(
            data.evaluation.tensors(), tf.range(count, dtype=tf.int64)
        )
        self._draws_images = bool(data.num_classes) and can_draw(data.input_shape)
        self._histograms = tf.function(self._compute_histograms, autograph=False)
        self._predict = tf.function(
            lambda features: model(features, training=False), autograph=False
        )

    def histograms(self) -> dict[str, np.ndarray]:
        """By tag, bucket rows of every weight and of every layer's activations.

        Activations need a model made of connected layers; a subclassed one has no
        intermediate outputs to ask for, and only its weights are returned.
        """
        return {tag: rows.numpy() for tag, rows in self._histograms().items()}

    def sample_grid(self) -> np.ndarray | None:
        """Samples with predictions, uint8 [height, width, 3]; None if not images."""
        if not self._draws_images:
            return None
        logits = self._predict(self._features).numpy()
        return draw_grid(
            self._features.numpy(), self._labels.numpy(), logits.argmax(axis=-1)
        )

    def _compute_histograms(self) -> dict[str, tf.Tensor]:
        rows = {}
        for weight in self._model.trainable_variables:
            with tf.device(weight.value.device):
                rows[f"weights/{weight.path}"] = histogram(weight.value)
        if isinstance(self._model, keras.Sequential) or hasattr(
            self._model, "operations"
        ):
            # By name: of a list of one Keras returns no list.
            outputs = {
                layer.name: layer.output
                for layer in self._model.layers
                if not isinstance(layer, keras.layers.InputLayer)
            }
            values = keras.Model(self._model.inputs, outputs)(
                self._features, training=False
            )
            for name, value in values.items():
                rows[f"activations/{name}"] = histogram(_all_numbers(value))
        return rows


def _all_numbers(outputs: Any) -> tf.Tensor:
    """Of a layer that may have several outputs, such as states beside a sequence."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tf.nest.flatten(outputs)]
    return tf.concat([tf.cast(numbers, flat[0].dtype) for numbers in flat], axis=0)
