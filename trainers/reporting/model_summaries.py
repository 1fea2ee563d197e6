"""Histograms of weights and activations."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainers.inputs.sources import Data, first_examples
from trainers.model.histograms import histogram

_NUM_SAMPLES = 32


class Inspection:
    """Summaries of a model on the first examples held out for evaluation."""

    def __init__(self, model: keras.Model, data: Data):
        self._model = model
        # Read once: every summary shows the same examples.
        self._features, _ = first_examples(data.to_look_at, _NUM_SAMPLES)
        self._histograms = tf.function(self._compute_histograms, autograph=False)

    def histograms(self) -> dict[str, np.ndarray]:
        """Returns bucket rows of every weight and of every layer's activations, by tag.

        Activations require a functional or sequential model. A subclassed model has no
        accessible intermediate outputs, so only its weights are included.
        """
        return {tag: rows.numpy() for tag, rows in self._histograms().items()}

    def _compute_histograms(self) -> dict[str, tf.Tensor]:
        rows = {}
        for weight in self._model.trainable_variables:
            # Counted on the weight's device, so that only the buckets are transferred.
            with tf.device(weight.value.device):
                rows[f"weights/{weight.path}"] = histogram(weight.value)
        if isinstance(self._model, keras.Sequential) or hasattr(
            self._model, "operations"
        ):
            # A dictionary, because Keras returns a tensor and not a list for a list of
            # one output.
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
    """Returns all outputs of a layer as one vector.

    A layer may have several outputs, such as states beside a sequence.
    """
    flat = [tf.reshape(tensor, [-1]) for tensor in tf.nest.flatten(outputs)]
    # Outputs may differ in type; tf.concat requires one.
    return tf.concat([tf.cast(numbers, flat[0].dtype) for numbers in flat], axis=0)
