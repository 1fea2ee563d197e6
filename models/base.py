"""What a model is to the rest of the program: how it is built and what it minimizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

import keras
import tensorflow as tf


class Examples(Protocol):
    """What a model is told of the data it is built for."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one example's features."""

    @property
    def num_classes(self) -> int:
        """How many logits there are to be."""

    @property
    def num_categories(self) -> int | None:
        """Features are ids from 0 to num_categories - 1; None: they are quantities."""


class Settings(Protocol):
    """What the user may choose about a model. Each model reads what concerns it."""

    @property
    def hidden_units(self) -> tuple[int, ...]:
        """Width of each hidden layer."""

    @property
    def dropout(self) -> float:
        """Fraction of activations dropped in training."""

    @property
    def embedding_dimension(self) -> int:
        """Numbers that stand for one category."""

    @property
    def embedding_shards(self) -> int:
        """Variables over which the rows of an embedding are spread."""


class Build(Protocol):
    """Makes a model with new weights."""

    def __call__(self, data: Examples, settings: Settings) -> keras.Model:
        """Returns a model from features [n, *input_shape] to logits [n, num_classes].

        Raises:
          ValueError: the model cannot take such features. The message is one line
            for the user: what was received, what is accepted and what to change.
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


def require_quantities(model: str, data: Examples) -> None:
    """Refuses ids: which of two categories has the larger one means nothing.

    Raises:
      ValueError: the features are ids of categories.
    """
    if data.num_categories is not None:
        raise ValueError(
            f"--model={model} takes quantities such as pixels; the data set's features "
            "are ids of categories: use --model=wide_embedding, or another --dataset."
        )


def classifier(build: Build) -> ModelSpec:
    """A model whose logits are trained by cross entropy and judged by accuracy."""
    return ModelSpec(
        build=build, make_loss=make_cross_entropy, metrics={"accuracy": is_correct}
    )
