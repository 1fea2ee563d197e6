"""CIFAR-10: 60,000 photographs of 32x32 pixels in ten classes.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from strategies.settings import UsageError
from trainers.data_config import DataConfig
from trainers.inputs.augmentation import CentralCrops, DistortedImages
from trainers.inputs.cifar10_files import NUM_CLASSES, Images, read_images
from trainers.inputs.data import ArraySource, Data, PreparedSource

# Of what the model sees, as in the TensorFlow 1 tutorial.
_CROP_PIXELS = 24


def load(config: DataConfig) -> Data:
    """Crops float32 [24, 24, 3] of the images, each standardized; ten classes.

    Training images are distorted anew in every step, unless --noaugmentation is
    given; the published test images are held out, and always cropped in the middle.

    Raises:
      UsageError: files are missing or damaged, or cannot be downloaded.
    """
    if config.data_path is None:
        train, test = _downloaded()
    else:
        train, test = read_images(Path(config.data_path))
    central = CentralCrops(height=_CROP_PIXELS, width=_CROP_PIXELS)
    distorted = DistortedImages(height=_CROP_PIXELS, width=_CROP_PIXELS)
    stored = ArraySource(train.pixels, train.labels)
    return Data(
        train=stored if config.augmentation else PreparedSource(stored, central),
        evaluation=PreparedSource(ArraySource(test.pixels, test.labels), central),
        augment=distorted if config.augmentation else None,
        input_shape=(_CROP_PIXELS, _CROP_PIXELS, 3),
        num_classes=NUM_CLASSES,
    )


def _downloaded() -> tuple[Images, Images]:
    """What Keras keeps in its own folder, or downloads once and checks."""
    try:
        parts = keras.datasets.cifar10.load_data()
    # Keras raises plain exceptions for what urllib told it.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--dataset=cifar10 cannot be downloaded ({reason}): give --data_path with "
            "the published cifar-10-binary.tar.gz or cifar-10-python.tar.gz."
        ) from error
    train, test = (
        Images(
            pixels=_channels_last(pixels), labels=labels.reshape(-1).astype(np.int64)
        )
        for pixels, labels in parts
    )
    return train, test


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    """Keras hands them out as its own configuration says."""
    if keras.config.image_data_format() == "channels_first":
        return pixels.transpose(0, 2, 3, 1)
    return pixels
