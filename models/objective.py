"""The interface of objectives: the minimized loss and the reported metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

# A function of labels and predictions, each a tensor or a structure of tensors [n,
# ...], that returns a value per example, [n].
PerExample = Callable[[Any, Any], tf.Tensor]


class Predict(Protocol):
    """A Keras model, or a function with the same call."""

    def __call__(self, features: Any, training: bool) -> Any:
        """Returns the predictions of a batch of features."""


def predictions_of(model: Predict, features: Any, training: bool) -> Any:
    """Calls a model as `fit` does: without `training` if its `call` has none.

    Layers with modes then predict (keras/src/backend/tensorflow/trainer.py,
    `train_step`).
    """
    if "training" in getattr(model, "call_signature_parameters", ("training",)):
        return model(features, training=training)
    return model(features)  # type: ignore[call-arg]


class ClassPredictions(NamedTuple):
    """True and predicted classes of n examples.

    Attributes:
      labels: True classes, int64 [n] from 0 to num_classes - 1; other values are not
        counted.
      predictions: Predicted classes, int64 [n] from 0 to num_classes - 1.
      num_classes: Number of classes.
    """

    labels: tf.Tensor
    predictions: tf.Tensor
    num_classes: int


class Weighted(NamedTuple):
    """Labels of n examples with sample weights, in place of labels alone.

    Attributes:
      labels: Tensor or structure of tensors [n, ...].
      weights: Tensor [n] or [n, ...], or one for each output in the labels' structure.
    """

    labels: Any
    weights: Any


def separated(labels: Any) -> tuple[Any, Any]:
    """Returns labels and sample weights; None in place of weights of 1 each."""
    return labels if isinstance(labels, Weighted) else (labels, None)


def labels_of(labels: Any) -> Any:
    """Returns labels without the sample weights that may be with them."""
    return separated(labels)[0]


class Summed(NamedTuple):
    """A sum over n examples, such as a metric's counts, among values of each."""

    total: tf.Tensor


# Start of the names of sums that are not summed over steps: the last step's counts, as
# `fit` reports numbers that are no metrics.
LATEST = "latest/"
# The value of each example, [n], or their sum.
Values = Mapping[str, tf.Tensor | Summed]
# A function of the same arguments as `PerExample`.
ClassPredictionsFunction = Callable[[Any, Any], ClassPredictions | None]
# A function of a model and a batch that returns scalar sums over its rows, by name.
Totals = Callable[[Predict, Any], Mapping[str, tf.Tensor]]


def add_steps(sums: MutableMapping[str, Any], steps: Mapping[str, np.ndarray]) -> None:
    """Adds the sums of further steps, [steps, ...] each, to sums over examples."""
    for name, values in steps.items():
        if name.startswith(LATEST):
            sums[name] = values[-1]
        else:
            sums[name] = sums.get(name, 0) + values.sum(axis=0)


def as_scalars(results: Mapping[str, Any]) -> dict[str, float]:
    """Returns one number for each name, for files and charts.

    The name of a vector's entry ends with its position. Accuracy has one name, although
    `compile` takes it as `acc` too.

    Args:
      results: Loss and metrics by the names of `fit`, numbers or arrays.
    """
    found: dict[str, float] = {}
    for name, value in results.items():
        is_accuracy = name.lower() in ("acc", "accuracy")
        if is_accuracy and "accuracy" not in {*results, *found}:
            name = "accuracy"
        numbers = np.asarray(value)
        if not numbers.ndim:
            found[name] = float(numbers)
            continue
        for index, number in enumerate(numbers.reshape(-1)):
            found[f"{name}/{index}"] = float(number)
    return found


def as_logs(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns results as in logs of `fit`: numbers, and arrays for vectors.

    A metric may have a dictionary of several results.
    """
    found: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, Mapping):
            found |= as_logs(value)
            continue
        numbers = np.asarray(value)
        found[name] = numbers if numbers.ndim else float(numbers)
    return found


def means_over_examples(sums: Mapping[str, Any]) -> dict[str, float]:
    """Divides sums by their common denominator, the number `examples` among them."""
    examples = sums["examples"]
    return {
        name: float(value / examples)
        for name, value in sums.items()
        if name != "examples"
    }


class Objective(Protocol):
    """The loss that is minimized, and the metrics that are reported."""

    def values(self, model: Predict, batch: Any, training: bool) -> Values:
        """Returns the `loss` per example, [n], and each metric, by name.

        Args:
          model: Model to call with `batch.features`.
          batch: Batch of n examples, a `strategies.common.types.Batch`.
          training: True if the model is to behave as in training.
        """

    def of_predictions(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        totals: Mapping[str, Any] | None = None,
    ) -> Values:
        """Returns the same values, computed from the model's predictions.

        Args:
          labels: Labels of n examples.
          predictions: Predictions for the same examples.
          global_size: Examples of the global batch; None if these are all.
          totals: Totals of the global batch; None if these examples are all.
        """

    @property
    def classes(self) -> ClassPredictionsFunction | None:
        """Function to true and predicted classes; None where there are no classes."""

    @property
    def has_layer_losses(self) -> bool:
        """True if the loss has what layers add and the regularization of weights."""

    @property
    def totals(self) -> Totals | None:
        """Function that computes the sums of a global batch that `values` needs."""

    def results(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the loss and metrics of any number of examples, as in logs of `fit`.

        Args:
          sums: Sums of `values` over the examples by name, NumPy arrays or numbers, and
            the number of examples as `examples`. Other sums become means too.
        """

    def metric_state(self, sums: Mapping[str, Any]) -> Sequence[tuple[Any, Any]]:
        """Returns what `fit` would leave in the metrics of a program's model.

        Args:
          sums: Sums as in `results`.

        Returns:
          Variables of Keras and their values; empty without a program.
        """

    @property
    def compiled(self) -> AsCompiled | None:
        """Objective for `keras.Model.compile`; None if Keras has no counterpart."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AsCompiled:
    """Arguments of `keras.Model.compile` that make `fit` minimize the same.

    Attributes:
      loss: A name, function or object, or a structure of them.
      loss_weights: The weights of several losses; None for 1 each.
      metrics: A list, or a structure of lists; None for none.
      weighted_metrics: The same, for metrics that sample weights apply to.
      labels: Function from labels and predictions to the labels of that loss; None if
        the loss takes the data's labels.
    """

    loss: Any
    loss_weights: Any = None
    metrics: Any = None
    weighted_metrics: Any = None
    labels: Callable[[Any, Any], Any] | None = None


def evaluated(
    objective: Objective, model: Predict, batch: Any
) -> tuple[Values, ClassPredictions | None]:
    """Returns `Objective.values` without training, and true and predicted classes."""
    if objective.classes is None:
        return objective.values(model, batch, training=False), None
    predictions = predictions_of(model, batch.features, training=False)
    values = objective.of_predictions(
        batch.labels, predictions, batch.global_size, batch.totals
    )
    return values, objective.classes(labels_of(batch.labels), predictions)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PredictionObjective:
    """An objective that depends only on labels and predictions.

    Attributes:
      loss: Loss per example, a function of labels and predictions, [n].
      metrics: Metrics per example by name, functions of the same, [n] each.
      classes: Predicted classes, a function of the same; None without classes.
      compiled: Arguments for Keras as in `Objective.compiled`.
    """

    loss: PerExample
    metrics: Mapping[str, PerExample]
    classes: ClassPredictionsFunction | None = None
    compiled: AsCompiled | None = None
    # Not fields: see `Objective`.
    has_layer_losses = False
    totals = None

    def values(
        self, model: Predict, batch: Any, training: bool
    ) -> Mapping[str, tf.Tensor]:
        predictions = predictions_of(model, batch.features, training)
        return self.of_predictions(batch.labels, predictions)

    def of_predictions(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        totals: Mapping[str, Any] | None = None,
    ) -> Mapping[str, tf.Tensor]:
        del global_size, totals
        functions = {"loss": self.loss, **self.metrics}
        return {name: f(labels, predictions) for name, f in functions.items()}

    def results(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return means_over_examples(sums)

    def metric_state(self, sums: Mapping[str, Any]) -> Sequence[tuple[Any, Any]]:
        return []
