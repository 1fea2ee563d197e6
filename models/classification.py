"""Classifiers: cross entropy, accuracy, and the classes of predictions."""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from models.base import Build, Examples, Settings
from models.objective import (
    AsCompiled,
    ClassPredictions,
    Objective,
    PerExample,
    PredictionObjective,
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model, with a function from a label smoothing to its objective.

    Satisfies `TrainableModel`.
    """

    build: Build
    make_objective: Callable[[float], Objective]
    # Not a field: the optimizer is that of the settings.
    compiled_optimizer = None

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        return self.make_objective(label_smoothing)


def make_cross_entropy_objective(label_smoothing: float) -> PredictionObjective:
    """Returns cross entropy, accuracy, and the classes of the largest logits."""
    return PredictionObjective(
        loss=make_cross_entropy(label_smoothing),
        metrics={"accuracy": is_correct},
        classes=largest_logit,
        compiled=cross_entropy_as_compiled(label_smoothing),
    )


def make_cross_entropy(label_smoothing: float) -> PerExample:
    """Returns a function for the cross entropy of each example, without reduction.

    Keras's own mean reduction divides by the number of replicas inside a distribution
    strategy; shards divide by the global number of examples instead.

    Args:
      label_smoothing: Fraction of each label that is spread over all classes (Szegedy
        et al., Rethinking the Inception Architecture, 2015, section 7).
    """

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        logits = _at_least_float32(logits)
        if not label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(
                labels, logits, from_logits=True
            )
        # Keras's sparse cross entropy does not smooth labels.
        return keras.losses.categorical_crossentropy(
            tf.one_hot(labels, logits.shape[-1], dtype=logits.dtype),
            logits,
            from_logits=True,
            label_smoothing=label_smoothing,
        )

    return loss


def cross_entropy_as_compiled(label_smoothing: float) -> AsCompiled:
    """Returns the arguments of `compile` for `make_cross_entropy` and accuracy.

    Keras smooths one-hot labels only.
    """
    if not label_smoothing:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return AsCompiled(loss=loss, metrics=["accuracy"])
    return AsCompiled(
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=label_smoothing
        ),
        metrics=["accuracy"],
        labels=lambda labels, predictions: keras.ops.one_hot(
            labels, predictions.shape[-1]
        ),
    )


def is_correct(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns 1 where the largest logit is the label's, else 0: float32 [n]."""
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)


def largest_logit(labels: tf.Tensor, logits: tf.Tensor) -> ClassPredictions:
    """Predicts the class of the largest logit for each example."""
    predictions = tf.argmax(logits, axis=-1)
    return ClassPredictions(tf.cast(labels, tf.int64), predictions, logits.shape[-1])


def _at_least_float32(logits: tf.Tensor) -> tf.Tensor:
    """Casts half precision to float32, as it is too coarse for sums of exponentials."""
    return tf.cast(logits, tf.float32) if logits.dtype.size < 4 else logits


def require_quantities(model: str, data: Examples) -> None:
    """Raises ValueError for ids of categories: the order of two ids means nothing."""
    if data.num_categories is not None:
        raise ValueError(
            f"--model={model} takes quantities such as pixels; the data set's features "
            "are ids of categories: use --model=wide_embedding, or another --dataset."
        )


def require_images(model: str, data: Examples, smallest: int = 0) -> None:
    """Raises ValueError unless examples are images of a smallest size or larger."""
    require_quantities(model, data)
    if len(data.input_shape) == 3 and min(data.input_shape[:2]) >= smallest:
        return
    sizes = f" from {smallest}x{smallest} up" if smallest else ""
    raise ValueError(
        f"--model={model} takes images of height x width x channels{sizes}; the data "
        f"set's examples have shape {data.input_shape}: use --model=mlp."
    )


def dropout(rate: float, name: str, seed: int) -> keras.layers.Layer:
    """Returns a layer of dropout that leaves the initial weights of others unchanged.

    Without a seed Keras draws one from Python's random numbers, which the initial
    weights of later layers come from too. Training steps replace it by their own.

    Args:
      rate: Fraction of activations dropped in training.
      name: Name of the layer.
      seed: Seed of the layer in Keras's own training, another one in each layer.
    """
    return keras.layers.Dropout(rate, seed=seed, name=name)


def classifier(build: Build) -> ModelSpec:
    """Returns a model that is trained by cross entropy and evaluated by accuracy."""

    def build_for_classes(data: Examples, settings: Settings) -> keras.Model:
        # 0 marks data whose labels are not ids of classes.
        if not data.num_classes:
            raise ValueError(
                "--model must be your own for this data set: those of this project "
                "take one array of features, and ids of classes, 0 to 999,999 at most, "
                "as labels; "
                "give --model=package.module:factory, or other data."
            )
        return build(data, settings)

    return ModelSpec(
        build=build_for_classes, make_objective=make_cross_entropy_objective
    )
