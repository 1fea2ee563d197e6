"""What a model is to the rest of the program: how it is built and what it minimizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf


class Examples(Protocol):
    """What a model is told of the data it is built for."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one example's features."""

    @property
    def num_classes(self) -> int:
        """How many logits there are to be; 0: labels are no ids of classes."""

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


# Of labels and predictions, each a tensor or a structure of tensors [n, ...].
PerExample = Callable[[Any, Any], tf.Tensor]


class Predict(Protocol):
    """A Keras model, or what is called like one."""

    def __call__(self, features: Any, training: bool) -> Any:
        """Predictions of a batch of features."""


class Classes(NamedTuple):
    """Of n examples the class of each, and the one that a model takes it for.

    Attributes:
      labels: int64 [n], from 0 to num_classes - 1; others are counted nowhere.
      predictions: int64 [n], likewise.
      num_classes: how many there are.
    """

    labels: tf.Tensor
    predictions: tf.Tensor
    num_classes: int


class Judged(NamedTuple):
    """What is evaluated of n examples.

    Attributes:
      values: of each example the `loss`, and by name each metric, [n].
      classes: None where the model is no classifier.
    """

    values: Mapping[str, tf.Tensor]
    classes: Classes | None


# Of labels and predictions, as `PerExample` has them.
ClassesOf = Callable[[Any, Any], "Classes | None"]


class Objective(Protocol):
    """What is minimized, and what is reported besides."""

    def values(
        self, model: Predict, batch: Any, training: bool
    ) -> Mapping[str, tf.Tensor]:
        """Of each example the `loss`, and by name each metric. Shapes [n].

        Args:
          model: to be called with `batch.features`.
          batch: n examples, as `strategies.common.types.Batch` has them.
          training: whether the model is to do what it does in training.
        """

    def of_predictions(
        self, labels: Any, predictions: Any, global_size: Any = None
    ) -> Mapping[str, tf.Tensor]:
        """The same, of what the model made of the features.

        Args:
          labels: Of n examples.
          predictions: Of the same.
          global_size: Examples of the global batch; None if these are all.
        """

    def judged(self, model: Predict, batch: Any) -> Judged:
        """The same where nothing is trained, and what examples are taken for."""

    @property
    def compiled(self) -> AsCompiled | None:
        """The same for `keras.Model.compile`; None if Keras has no counterpart."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AsCompiled:
    """Arguments of `keras.Model.compile` that make `fit` minimize the same.

    Attributes:
      loss: A name, function or object, or a structure of them.
      loss_weights: The weights of several losses; None for 1 each.
      metrics: A list, or a structure of lists; None for none.
      weighted_metrics: The same, for metrics that sample weights apply to.
      labels: From labels and predictions to the labels of that loss; None if they are
        those of the data.
    """

    loss: Any
    loss_weights: Any = None
    metrics: Any = None
    weighted_metrics: Any = None
    labels: Callable[[Any, Any], Any] | None = None


def judged_by(
    objective: Objective, classes: ClassesOf | None, model: Predict, batch: Any
) -> Judged:
    """Evaluates an objective of labels and predictions on a batch.

    Args:
      objective: A function of labels and predictions.
      classes: Finds classes in the same; None where the model is no classifier.
      model: See `Objective.values`.
      batch: See `Objective.values`.
    """
    predictions = model(batch.features, training=False)
    values = objective.of_predictions(batch.labels, predictions, batch.global_size)
    if classes is None:
        return Judged(values, None)
    return Judged(values, classes(batch.labels, predictions))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PredictionObjective:
    """An objective that depends on labels and predictions alone.

    Attributes:
      loss: per-example loss of (labels, predictions), [n].
      metrics: named per-example metrics of the same, [n] each.
      classes: what examples are taken for, from the same; None if for nothing.
      compiled: See `Objective`.
    """

    loss: PerExample
    metrics: Mapping[str, PerExample]
    classes: ClassesOf | None = None
    compiled: AsCompiled | None = None

    def values(
        self, model: Predict, batch: Any, training: bool
    ) -> Mapping[str, tf.Tensor]:
        """See `Objective`."""
        predictions = model(batch.features, training=training)
        return self.of_predictions(batch.labels, predictions)

    def of_predictions(
        self, labels: Any, predictions: Any, global_size: Any = None
    ) -> Mapping[str, tf.Tensor]:
        """See `Objective`."""
        del global_size
        functions = {"loss": self.loss, **self.metrics}
        return {name: f(labels, predictions) for name, f in functions.items()}

    def judged(self, model: Predict, batch: Any) -> Judged:
        """See `Objective`."""
        return judged_by(self, self.classes, model, batch)


class TrainableModel(Protocol):
    """How a model is made, and what is minimized then."""

    @property
    def build(self) -> Build:
        """Makes the Keras model."""

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        """Of a model that `build` made.

        Raises:
          ValueError: there is none, or it takes no label smoothing.
        """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model and its objective. Satisfies `TrainableModel`.

    Attributes:
      build: makes the Keras model.
      make_loss: from the label smoothing to a function of (labels [n], logits
        [n, num_classes]) that returns each example's loss [n].
      metrics: named functions of the same arguments; the metric is the mean over
        all examples of what they return, [n].
      as_compiled: From the label smoothing to the same for `keras.Model.compile`; None
        if Keras has no counterpart.
    """

    build: Build
    make_loss: Callable[[float], PerExample]
    metrics: Mapping[str, PerExample]
    as_compiled: Callable[[float], AsCompiled] | None = None

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        """See `TrainableModel`."""
        compiled = self.as_compiled
        return PredictionObjective(
            loss=self.make_loss(label_smoothing),
            metrics=self.metrics,
            classes=largest_logit,
            compiled=None if compiled is None else compiled(label_smoothing),
        )


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


def cross_entropy_as_compiled(label_smoothing: float) -> AsCompiled:
    """Returns what a program with `fit` has for `make_cross_entropy`, and accuracy.

    Smoothing needs one-hot labels there.

    Args:
      label_smoothing: See `make_cross_entropy`.
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
    """1 where the largest logit is the label's, else 0. Shape [n]."""
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)


def largest_logit(labels: tf.Tensor, logits: tf.Tensor) -> Classes:
    """What each example is taken for: the class of its largest logit."""
    predictions = tf.argmax(logits, axis=-1)
    return Classes(tf.cast(labels, tf.int64), predictions, logits.shape[-1])


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

    def build_for_classes(data: Examples, settings: Settings) -> keras.Model:
        if not data.num_classes:
            raise ValueError(
                "--model must be your own for this data set: those of this project "
                "take one array of features, and ids of classes from 0 as labels; "
                "give --model=package.module:factory, or other data."
            )
        return build(data, settings)

    return ModelSpec(
        build=build_for_classes,
        make_loss=make_cross_entropy,
        metrics={"accuracy": is_correct},
        as_compiled=cross_entropy_as_compiled,
    )
