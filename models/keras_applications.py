"""Classifiers of keras.applications with new weights: `--model=keras:NAME`."""

import functools

import keras

from models.base import Examples, Settings
from models.catalogue import PREFIX
from models.classification import ModelSpec, classifier, require_images


def spec_of(name: str) -> ModelSpec:
    """Returns the classifier of a name such as ResNet50."""
    return classifier(functools.partial(_build, name))


def _build(name: str, data: Examples, settings: Settings) -> keras.Model:
    """Builds a classifier without its last activation: its outputs are logits."""
    require_images(PREFIX + name, data)
    make = getattr(keras.applications, name)
    try:
        return make(
            # New weights: nothing is downloaded.
            weights=None,
            input_shape=data.input_shape,
            classes=data.num_classes,
            # Logits: the loss applies the softmax.
            classifier_activation=None,
        )
    except ValueError as error:
        # Keras's message may have several lines; an error of this project has one.
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"--model={PREFIX}{name} cannot take examples of shape {data.input_shape} "
            f"({reason}): use larger ones, such as --dataset=synthetic "
            "--set=data.input_shape=224,224,3, or another model."
        ) from error
