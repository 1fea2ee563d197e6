"""Augmentation of training images, equal on any number of replicas.

The distortion of an image is a function of the run's seed, the step and the image's
index in the data set. The result is the same on every replica and in every row of a
shard. No state is kept between steps, so that a run can start at any step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.common import hashing

# Separates these random numbers from others with the key (seed, step).
_PURPOSE = 0x6175676D656E74


# Function from features as stored [n, ...], the indices of their examples, int64 [n],
# the step, an int64 scalar, and the seed of the run to the features that a step trains
# on, as graph operations.
Augment = Callable[[Any, tf.Tensor, tf.Tensor, int], Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DistortedImages:
    """Random crop, flip, brightness and contrast, then standardization of each image.

    The distortions are the ones of `distorted_inputs` in tensorflow/models,
    tutorials/image/cifar10/cifar10_input.py: a crop at any position inside the image, a
    flip of every other image, up to 63 of 255 added to all pixels, and the distance of
    each pixel from its channel's mean multiplied by 0.2 to 1.8.

    Attributes:
      height: Height of the crop in pixels.
      width: Width of the crop in pixels.
      max_brightness: Largest number that is added to pixels or subtracted from them.
      contrast: Smallest and largest contrast factor.
    """

    height: int
    width: int
    max_brightness: float = 63.0
    contrast: tuple[float, float] = (0.2, 1.8)

    def __call__(
        self, features: tf.Tensor, indices: tf.Tensor, step: tf.Tensor, seed: int
    ) -> tf.Tensor:
        """Distorts images uint8 [n, ., ., c] to float32 [n, height, width, c]."""
        # A hash of the example's index, not a generator: rows and replicas do not
        # matter.
        key = hashing.key_of(seed, _PURPOSE, step)
        top, left, flip, brightness, contrast = tf.unstack(
            hashing.uniform_of_rows(key, indices, 5), axis=1
        )
        images = self._cropped(features, top, left, flip < 0.5)
        images = tf.cast(images, tf.float32)
        images += _per_image((2 * brightness - 1) * self.max_brightness)
        lowest, highest = self.contrast
        factor = _per_image(lowest + contrast * (highest - lowest))
        # Shape [n, 1, 1, channels].
        means = tf.reduce_mean(images, axis=(1, 2), keepdims=True)
        return tf.image.per_image_standardization((images - means) * factor + means)

    def _cropped(
        self, images: tf.Tensor, top: tf.Tensor, left: tf.Tensor, flip: tf.Tensor
    ) -> tf.Tensor:
        """Crops each image at its position, and mirrors some of the crops.

        Args:
          images: Images [n, larger, larger, channels].
          top: Vertical position, float64 [n] from 0 to 1, as a fraction of the possible
            ones.
          left: Horizontal position, float64 [n] from 0 to 1.
          flip: Mirrored images, bool [n].
        """
        # int32 [n, height], by broadcasting of [n, 1] and [height].
        rows = _first(top, images.shape[1] - self.height) + tf.range(self.height)
        columns = _first(left, images.shape[2] - self.width) + tf.range(self.width)
        columns = tf.where(flip[:, tf.newaxis], columns[:, ::-1], columns)
        images = tf.gather(images, rows, axis=1, batch_dims=1)
        return tf.gather(images, columns, axis=2, batch_dims=1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CentralCrops:
    """The center of each image, standardized; evaluation uses it, nothing is random.

    It is the same as `inputs` in tutorials/image/cifar10/cifar10_input.py.

    Attributes:
      height: Height of the crop in pixels.
      width: Width of the crop in pixels.
    """

    height: int
    width: int

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Crops images uint8 [n, ., ., c] to float32 [n, height, width, c]."""
        top = (images.shape[1] - self.height) // 2
        left = (images.shape[2] - self.width) // 2
        images = images[:, top : top + self.height, left : left + self.width]
        return tf.image.per_image_standardization(tf.cast(images, tf.float32))


def _first(position: tf.Tensor, last: int) -> tf.Tensor:
    """Returns the first row or column of each crop, from 0 to last: int32 [n, 1]."""
    return tf.cast(position * (last + 1), tf.int32)[:, tf.newaxis]


def _per_image(values: tf.Tensor) -> tf.Tensor:
    """Returns one float32 per image, in a shape that broadcasts: [n, 1, 1, 1]."""
    return tf.cast(values, tf.float32)[:, tf.newaxis, tf.newaxis, tf.newaxis]
