"""Histograms of weights and activations, and sample images."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

from trainers.inputs.sources import Data
from trainers.model.histograms import histogram

_NUM_SAMPLES = 32


class Inspection:
    """Summaries of a model on the first examples held out for evaluation."""

    def __init__(self, model: keras.Model, data: Data):
        self._model = model
        count = min(_NUM_SAMPLES, data.evaluation.num_examples)
        # Read once: every summary shows the same examples.
        self._features, self._labels = data.evaluation.read(
            data.evaluation.tensors(), tf.range(count, dtype=tf.int64)
        )
        self._draws_images = bool(data.num_classes) and can_draw(data.input_shape)
        self._histograms = tf.function(self._compute_histograms, autograph=False)
        self._predict = tf.function(
            lambda features: model(features, training=False), autograph=False
        )

    def histograms(self) -> dict[str, np.ndarray]:
        """Returns bucket rows of every weight and of every layer's activations, by tag.

        Activations require a functional or sequential model. A subclassed model has no
        accessible intermediate outputs, so only its weights are included.
        """
        return {tag: rows.numpy() for tag, rows in self._histograms().items()}

    def sample_grid(self) -> np.ndarray | None:
        """Returns samples with predictions; None if the examples are not images.

        Returns:
          uint8 [height, width, 3].
        """
        if not self._draws_images:
            return None
        logits = self._predict(self._features).numpy()
        return draw_grid(
            self._features.numpy(), self._labels.numpy(), logits.argmax(axis=-1)
        )

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


_TILE_PIXELS = 64
_CAPTION_PIXELS = 14
_PER_ROW = 8
_RIGHT = (20, 110, 50)
_WRONG = (190, 30, 30)


def draw_grid(
    images: np.ndarray, labels: np.ndarray, predictions: np.ndarray
) -> np.ndarray:
    """Draws images in rows, each with its label, or its label and wrong prediction.

    Args:
      images: [n, height, width, channels] with 1 or 3 channels. The values of each
        image are scaled from its minimum and maximum to the full range.
      labels: int64 [n].
      predictions: int64 [n].

    Returns:
      uint8 [grid height, grid width, 3].
    """
    # Rounded up.
    rows = -(-len(images) // _PER_ROW)
    width = _TILE_PIXELS * min(len(images), _PER_ROW)
    height = (_TILE_PIXELS + _CAPTION_PIXELS) * rows
    grid = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(grid)
    for index, image in enumerate(images):
        row, column = divmod(index, _PER_ROW)
        left = column * _TILE_PIXELS
        top = row * (_TILE_PIXELS + _CAPTION_PIXELS)
        grid.paste(_tile(image), (left, top + _CAPTION_PIXELS))
        right = labels[index] == predictions[index]
        caption = (
            str(labels[index])
            if right
            else f"{labels[index]}, not {predictions[index]}"
        )
        draw.text((left + 2, top + 1), caption, fill=_RIGHT if right else _WRONG)
    return np.asarray(grid)


def can_draw(input_shape: tuple[int, ...]) -> bool:
    """Returns whether examples of this shape are images."""
    return len(input_shape) == 3 and input_shape[-1] in (1, 3)


def _tile(image: np.ndarray) -> Image.Image:
    low, high = float(image.min()), float(image.max())
    # A constant image would divide by zero.
    pixels = np.uint8(255 * (image - low) / max(high - low, 1e-9))
    if pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    size = (_TILE_PIXELS - 2, _TILE_PIXELS - 2)
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
