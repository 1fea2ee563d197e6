"""CIFAR-10: 60,000 photographs of 32x32 pixels in ten classes.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from pathlib import Path

from trainers.config.data import DataConfig
from trainers.inputs.augmentation import CentralCrops, DistortedImages
from trainers.inputs.cifar10_files import NUM_CLASSES, downloaded, read_images
from trainers.inputs.sources import ArraySource, Data, PreparedSource

# Side of the crop that the model sees, as in the TensorFlow 1 tutorial.
_CROP_PIXELS = 24
# In the order of labels, as in the archive's batches.meta.txt.
_CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def load(config: DataConfig) -> Data:
    """Returns standardized crops float32 [24, 24, 3] of the images, in ten classes.

    Training images are distorted differently in every step, unless `augmentation` is
    off. The published test images are held out, and always cropped at the center.

    Raises:
      UsageError: Files are missing or damaged, or cannot be downloaded.
    """
    train, test = read_images(Path(config.data_path or downloaded()))
    central = CentralCrops(height=_CROP_PIXELS, width=_CROP_PIXELS)
    distorted = DistortedImages(height=_CROP_PIXELS, width=_CROP_PIXELS)
    stored = ArraySource(*train)
    return Data(
        train=stored if config.augmentation else PreparedSource(stored, central),
        evaluation=PreparedSource(ArraySource(*test), central),
        augment=distorted if config.augmentation else None,
        input_shape=(_CROP_PIXELS, _CROP_PIXELS, 3),
        num_classes=NUM_CLASSES,
        class_names=_CLASS_NAMES,
    )
