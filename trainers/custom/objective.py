"""Losses and metrics as Keras has them, for each example.

`fit` takes means over a batch. A share of a global batch needs the sum over its own
examples, so that functions are asked for the value of each example here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.base import PerExample, PredictionObjective
from strategies.library_internals import (
    compiled_with,
    function_of_metric,
    mask_of,
)
from strategies.settings import UsageError
from trainers.custom.classes import classes_of

# Keras's own names for whichever of three fits labels and predictions.
_ACCURACY = ("accuracy", "acc")


def objective_of(
    model: keras.Model, loss: str | None, metrics: Sequence[str] | None
) -> PredictionObjective:
    """What a model is to minimize.

    Args:
      model: perhaps compiled.
      loss: Keras's name; None for the one the model was compiled with.
      metrics: Keras's names; None for those the model was compiled with.

    Raises:
      UsageError: there is no loss, or something in it has no value of each example.
    """
    weights, reported = compiled_with(model)
    names = getattr(model, "output_names", None)
    minimized = loss or getattr(model, "loss", None)
    if minimized is None:
        raise UsageError(
            "--loss is missing, and the model was not compiled with one: give Keras's "
            "name of it, such as --loss=sparse_categorical_crossentropy, or compile "
            "the model."
        )
    if loss:
        weights = None
    total = _Total(minimized, weights, names)
    return PredictionObjective(
        loss=total,
        classes=classes_of(minimized),
        metrics={
            **_metrics_by_name(metrics or reported, names),
            **total.parts(),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Total:
    """The weighted sum of all outputs' losses.

    Attributes:
      losses: one for all outputs, or one of each by name or in order.
      weights: likewise; None for one each.
      names: of a model's outputs, in order; None if they are not known.
    """

    losses: Any
    weights: Any
    names: Sequence[str] | None

    def __call__(self, labels: Any, predictions: Any) -> tf.Tensor:
        by_output = _by_output(predictions, self.names)
        labelled = _by_output(labels, self.names)
        losses = _by_output(self.losses, self.names)
        weights = _by_output(self.weights, self.names)
        terms = []
        for output, predicted in by_output.items():
            given = losses.get(output, losses.get(""))
            if given is None:
                continue
            value = _loss_function(given)(_labels_of(labelled, output), predicted)
            weight = weights.get(output, weights.get(""))
            terms.append(value if weight is None else weight * value)
        if not terms:
            raise UsageError(
                f"no loss is of an output of the model: there are losses of "
                f"{', '.join(losses)} and outputs {', '.join(by_output)}."
            )
        return tf.add_n(terms)

    def parts(self) -> Mapping[str, PerExample]:
        """Of several losses each by itself, without its weight."""
        named = _by_output(self.losses, self.names)
        return {
            f"{output}_loss": _OfOutput(output, _loss_function(given), self.names)
            for output, given in named.items()
            if output and given is not None
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _OfOutput:
    """A function of one output, found among all."""

    output: str
    function: PerExample
    names: Sequence[str] | None

    def __call__(self, labels: Any, predictions: Any) -> tf.Tensor:
        by_output = _by_output(predictions, self.names)
        if self.output not in by_output:
            raise UsageError(
                f"the model has no output {self.output!r}; it has "
                f"{', '.join(by_output)}."
            )
        labelled = _labels_of(_by_output(labels, self.names), self.output)
        return self.function(labelled, by_output[self.output])


def _by_output(values: Any, names: Sequence[str] | None) -> Mapping[str, Any]:
    """By the name of each output; what is not of several is by the empty name."""
    if isinstance(values, Mapping):
        return values
    if isinstance(values, (list, tuple)):
        if names is None or len(names) != len(values):
            names = [f"output_{index}" for index in range(len(values))]
        return dict(zip(names, values, strict=True))
    return {"": values}


def _labels_of(labels: Mapping[str, Any], output: str) -> Any:
    if output in labels:
        return labels[output]
    if "" in labels and output == "":
        return labels[""]
    raise UsageError(
        f"the data has no labels of output {output!r}; it has labels of "
        f"{', '.join(labels)}: name both alike."
    )


def _loss_function(given: Any) -> PerExample:
    """A loss by name, as a function or as an object, without its reduction."""
    loss = _Unreduced(keras.losses.get(given))

    def of_each(labels: Any, predictions: Any) -> tf.Tensor:
        return _of_examples(loss(labels, predictions), predictions, loss.name)

    return of_each


class _Unreduced(keras.losses.Loss):
    """Another loss, or a function, with a value of each example.

    To be called as a loss of Keras brings labels and predictions to one type.
    """

    def __init__(self, given: Any):
        is_loss = isinstance(given, keras.losses.Loss)
        name = given.name if is_loss else getattr(given, "__name__", "")
        super().__init__(
            # TensorFlow has scopes of that name, which `<lambda>` cannot be.
            name=name if name.isidentifier() else "loss",
            reduction="none",
            dtype=given.dtype if is_loss else None,
        )
        self._function = given.call if is_loss else given

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return self._function(y_true, y_pred)


def _metrics_by_name(
    metrics: Any, names: Sequence[str] | None
) -> Mapping[str, PerExample]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        nested = any(isinstance(item, (list, tuple)) for item in metrics)
        metrics = _by_output(metrics, names) if nested else {"": metrics}
    found: dict[str, PerExample] = {}
    for output, of_output in metrics.items():
        for given in of_output if isinstance(of_output, (list, tuple)) else [of_output]:
            name, function = _metric(given)
            name = f"{output}_{name}" if output else name
            found[name] = _OfOutput(output, function, names)
    return found


def _metric(given: Any) -> tuple[str, PerExample]:
    """Its name, and what it is the mean of."""
    if isinstance(given, str) and given.lower() in _ACCURACY:
        return "accuracy", _accuracy
    metric = keras.metrics.get(given)
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        function, name = function_of_metric(metric), metric.name
    elif callable(metric) and not isinstance(metric, keras.metrics.Metric):
        function, name = metric, getattr(metric, "__name__", str(given))
    else:
        raise UsageError(
            f"the metric {getattr(metric, 'name', given)!r} is not a mean over "
            "examples, as accuracy or mean_absolute_error are: leave it out, and use "
            "it on the trained model."
        )
    name = given if isinstance(given, str) else name

    def of_each(labels: Any, predictions: Any) -> tf.Tensor:
        return _of_examples(function(labels, predictions), predictions, name)

    return name, of_each


def _accuracy(labels: Any, predictions: Any) -> tf.Tensor:
    """Whichever of three `fit` would take (keras/src/trainers/compile_utils.py)."""
    if predictions.shape[-1] == 1:
        function = keras.metrics.binary_accuracy
    elif len(labels.shape) < len(predictions.shape) or labels.shape[-1] == 1:
        function = keras.metrics.sparse_categorical_accuracy
    else:
        function = keras.metrics.categorical_accuracy
    return _of_examples(function(labels, predictions), predictions, "accuracy")


def _of_examples(values: tf.Tensor, predictions: Any, name: str) -> tf.Tensor:
    """One value of each: the mean of those it has, such as one of each word."""
    if mask_of(predictions) is not None:
        raise UsageError(
            "an output of the model has a mask, so that some of it does not count: "
            "return a per-example loss from replica_step(model, batch) that says how "
            "examples of different lengths weigh."
        )
    values = tf.convert_to_tensor(values)
    if not values.shape.rank:
        raise UsageError(
            f"{name!r} gives one number for a whole batch, and each example's is "
            "needed: return a tensor with a value of each, without its mean."
        )
    return tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
