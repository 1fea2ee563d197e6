"""Distorted copies of training images, the same on any number of replicas.

What happens to an image is a function of the run's seed, the step and the image's
index in the data set. Whoever computes it, in whichever row of whichever share, gets
the same picture; nothing is kept between steps, so that a run can start at any.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import tensorflow as tf

from strategies.common import hashing

# Tells these numbers apart from others that are keyed by (seed, step).
_PURPOSE = 0x6175676D656E74


class Augment(Protocol):
    """Turns examples as they are stored into what a step trains on."""

    def __call__(
        self, features: Any, indices: tf.Tensor, step: tf.Tensor, seed: int
    ) -> Any:
        """Features of a step, as graph operations.

        Args:
          features: tensor or structure of tensors [n, ...], as they are stored.
          indices: int64 [n], which examples of the data set these are.
          step: int64 scalar.
          seed: of the run.
        """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DistortedImages:
    """Random crop, flip, brightness and contrast, then each image standardized.

    As `distorted_inputs` of tensorflow/models, tutorials/image/cifar10/
    cifar10_input.py: a crop anywhere inside, a flip of every other image, up to 63 of
    255 added to all pixels, and the distance of each pixel from its channel's mean
    multiplied by 0.2 to 1.8.

    Attributes:
      height: of the crop.
      width: of the crop.
      max_brightness: largest number that is added, or subtracted.
      contrast: smallest and largest factor.
    """

    height: int
    width: int
    max_brightness: float = 63.0
    contrast: tuple[float, float] = (0.2, 1.8)

    def __call__(
        self, features: tf.Tensor, indices: tf.Tensor, step: tf.Tensor, seed: int
    ) -> tf.Tensor:
        """Images uint8 [n, ., ., channels] as float32 [n, height, width, channels].

        Args:
          features: images with values from 0 to 255.
          indices: int64 [n].
          step: int64 scalar.
          seed: of the run.
        """
        key = hashing.key_of(seed, _PURPOSE, step)
        top, left, flip, brightness, contrast = tf.unstack(
            hashing.uniform_of_rows(key, indices, 5), axis=1
        )
        images = self._cropped(features, top, left, flip < 0.5)
        images = tf.cast(images, tf.float32)
        images += _of_images((2 * brightness - 1) * self.max_brightness)
        lowest, highest = self.contrast
        factor = _of_images(lowest + contrast * (highest - lowest))
        means = tf.reduce_mean(images, axis=(1, 2), keepdims=True)
        return tf.image.per_image_standardization((images - means) * factor + means)

    def _cropped(
        self, images: tf.Tensor, top: tf.Tensor, left: tf.Tensor, flip: tf.Tensor
    ) -> tf.Tensor:
        """Crops at a position of each image's own, some of them from right to left.

        Args:
          images: [n, larger, larger, channels].
          top: float64 [n] from 0 to 1, of the places there are.
          left: the same.
          flip: bool [n].
        """
        rows = _first(top, images.shape[1] - self.height) + tf.range(self.height)
        columns = _first(left, images.shape[2] - self.width) + tf.range(self.width)
        columns = tf.where(flip[:, tf.newaxis], columns[:, ::-1], columns)
        images = tf.gather(images, rows, axis=1, batch_dims=1)
        return tf.gather(images, columns, axis=2, batch_dims=1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CentralCrops:
    """The middle of each image, standardized: what evaluation sees, nothing random.

    As `inputs` of the same file.

    Attributes:
      height: of the crop.
      width: of the crop.
    """

    height: int
    width: int

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Images uint8 [n, ., ., channels] as float32 [n, height, width, channels]."""
        top = (images.shape[1] - self.height) // 2
        left = (images.shape[2] - self.width) // 2
        images = images[:, top : top + self.height, left : left + self.width]
        return tf.image.per_image_standardization(tf.cast(images, tf.float32))


def _first(position: tf.Tensor, last: int) -> tf.Tensor:
    """Where each crop begins, from 0 to last: int32 [n, 1]."""
    return tf.cast(position * (last + 1), tf.int32)[:, tf.newaxis]


def _of_images(values: tf.Tensor) -> tf.Tensor:
    """One float32 for each image, in a shape that broadcasts."""
    return tf.cast(values, tf.float32)[:, tf.newaxis, tf.newaxis, tf.newaxis]
