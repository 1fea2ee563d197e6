"""What a model is to the rest of the program: how it is built and what it minimizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import keras
import tensorflow as tf


class Build(Protocol):
    """Makes a model with new weights."""

    def __call__(
        self,
        *,
        input_shape: Sequence[int],
        num_classes: int,
        hidden_units: Sequence[int],
        dropout: float,
    ) -> keras.Model:
        """Returns a model from features [n, *input_shape] to logits [n, num_classes].

        Args:
          input_shape: of one example's features.
          num_classes: how many logits.
          hidden_units: width of each hidden layer, for models that let one choose.
          dropout: fraction of activations dropped in training.

        Raises:
          ValueError: the model cannot take features of this shape.
        """


PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model and its objective.

    Attributes:
      build: makes the Keras model.
      make_loss: from the label smoothing to a function of (labels [n], logits
        [n, num_classes]) that returns each example's loss [n].
      metrics: named functions of the same arguments; the metric is the mean over
        all examples of what they return, [n].
    """

    build: Build
    make_loss: Callable[[float], PerExample]
    metrics: Mapping[str, PerExample]


def make_cross_entropy(label_smoothing: float) -> PerExample:
    """Cross entropy of each example, without any reduction.

    Keras's own mean reduction divides by the number of replicas inside a
    distribution strategy; shares divide by the global example count instead.

    Args:
      label_smoothing: share of each label spread over all classes (Szegedy et
        al., Rethinking the Inception Architecture, 2015, section 7).
    """

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        logits = _at_least_float32(logits)
        if not label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(
                labels, logits, from_logits=True
            )
        return keras.losses.categorical_crossentropy(
            tf.one_hot(labels, logits.shape[-1], dtype=logits.dtype),
            logits,
            from_logits=True,
            label_smoothing=label_smoothing,
        )

    return loss


def is_correct(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """1 where the largest logit is the label's, else 0. Shape [n]."""
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)


def _at_least_float32(logits: tf.Tensor) -> tf.Tensor:
    """Half precision is too coarse for a sum of exponentials."""
    return tf.cast(logits, tf.float32) if logits.dtype.size < 4 else logits


def classifier(build: Build) -> ModelSpec:
    """A model whose logits are trained by cross entropy and judged by accuracy."""
    return ModelSpec(
        build=build, make_loss=make_cross_entropy, metrics={"accuracy": is_correct}
    )
