"""Losses and metrics as Keras computes them, for each example.

`fit` takes means over a batch. A shard of a global batch needs the sum over its
examples, so that functions here return the value of each example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.base import (
    AsCompiled,
    ClassPredictionsFunction,
    EvalOutputs,
    Predict,
    judged_by,
)
from strategies.common.errors import UsageError
from strategies.common.private_apis import (
    OutputLoss,
    OutputMetric,
    compiled_with,
    function_of_metric,
    losses_by_output,
    metric_names,
    metrics_by_output,
)
from trainers.user_code.classes import classes_of
from trainers.user_code.independence import check_independence
from trainers.user_code.unreduced import (
    Unreduced,
    in_columns,
    num_rows,
    of_rows,
    refuse_masks,
)

_ACCURACY = ("accuracy", "acc")


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledObjective:
    """The objective that `fit` would have. Satisfies `Objective`.

    Attributes:
      losses: One of each output that has one.
      metrics: By the name that `evaluate` reports them by.
      classes: Classes of examples; None where the model is no classifier.
      compiled: The arguments of `compile` that it was made from.
    """

    losses: Sequence[_Loss]
    metrics: Mapping[str, _Mean]
    classes: ClassPredictionsFunction | None
    compiled: AsCompiled | None

    def values(
        self, model: Predict, batch: Any, training: bool
    ) -> Mapping[str, tf.Tensor]:
        """See `Objective`."""
        predictions = model(batch.features, training=training)
        return self.of_predictions(batch.labels, predictions, batch.global_size)

    def of_predictions(
        self, labels: Any, predictions: Any, global_size: Any = None
    ) -> Mapping[str, tf.Tensor]:
        """See `Objective`."""
        refuse_masks(predictions)
        labels = _in_floatx(labels)
        by_name = {
            f"{loss.name}_loss": loss(labels, predictions, global_size)
            for loss in self.losses
        }
        total = tf.add_n(
            [
                value if loss.weight is None else loss.weight * value
                for loss, value in zip(self.losses, by_name.values(), strict=True)
            ]
        )
        reported = by_name if len(self.losses) > 1 else {}
        found = {name: f(labels, predictions) for name, f in self.metrics.items()}
        return {"loss": total, **found, **reported}

    def judged(self, model: Predict, batch: Any) -> EvalOutputs:
        """See `Objective`."""
        return judged_by(self, self.classes, model, batch)


def objective_of(
    model: keras.Model,
    loss: str | None,
    metrics: Sequence[str] | None,
    labels: Any,
    predictions: Any,
) -> CompiledObjective:
    """Returns what `fit` would minimize and report, for each example.

    Call it outside of a strategy's scope, because Keras makes variables of metrics.

    Args:
      model: A model, perhaps compiled.
      loss: Keras's name; None for the loss the model was compiled with.
      metrics: Keras's names; None for those the model was compiled with.
      labels: Of a few examples.
      predictions: Tensors such as the model returns for these examples.

    Raises:
      UsageError: There is no loss, or one of them has no value for each example.
    """
    weights, reported, weighted = compiled_with(model)
    minimized = loss or getattr(model, "loss", None)
    if minimized is None:
        raise UsageError(
            "--loss is missing, and the model was not compiled with one: "
            "give Keras's "
            "name of it, such as --loss=sparse_categorical_crossentropy, or "
            "compile "
            "the model."
        )
    compiled = AsCompiled(
        loss=minimized,
        loss_weights=None if loss else weights,
        metrics=_named_accuracy(list(metrics) if metrics else reported),
        weighted_metrics=None if metrics else _named_accuracy(weighted),
    )
    names = getattr(model, "output_names", None)
    labels = _in_floatx(labels)
    losses = _losses(compiled, names, labels, predictions)
    objective = CompiledObjective(
        losses=losses,
        metrics=_metrics(compiled, names, labels, predictions),
        classes=classes_of(losses[0].resolved.loss) if len(losses) == 1 else None,
        compiled=compiled,
    )
    refuse_masks(predictions)
    check_independence([*losses, *objective.metrics.values()], labels, predictions)
    return objective


@dataclasses.dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of one output, for each example.

    Attributes:
      resolved: The loss as Keras resolves it.
    """

    resolved: OutputLoss

    @property
    def name(self) -> str:
        return self.resolved.name

    @property
    def title(self) -> str:
        return f"the loss {self.resolved.loss.name!r}"

    @property
    def weight(self) -> float | None:
        return self.resolved.weight

    def __call__(
        self, labels: Any, predictions: Any, global_size: Any = None
    ) -> tf.Tensor:
        """Returns values [n] whose mean over the global batch is Keras's loss.

        Args:
          labels: Of n examples.
          predictions: Of the same.
          global_size: Examples of the global batch; None if these are all.
        """
        loss = self.resolved.loss
        values = self.resolved.computed_by(Unreduced(loss))(labels, predictions)
        if loss.reduction != "sum":
            return of_rows(tf.reduce_mean, values, predictions, self.title)
        summed = of_rows(tf.reduce_sum, values, predictions, self.title)
        size = num_rows(predictions) if global_size is None else global_size
        return tf.cast(size, summed.dtype) * summed

    def reduced(self, labels: Any, predictions: Any) -> tf.Tensor:
        """Returns the loss of the batch as `fit` has it, without its weight."""
        return self.resolved.computed_by(self.resolved.loss)(labels, predictions)


@dataclasses.dataclass(frozen=True, slots=True)
class _Mean:
    """A metric that is a mean over examples."""

    name: str
    resolved: OutputMetric

    @property
    def title(self) -> str:
        return f"the metric {self.name!r}"

    def __call__(
        self, labels: Any, predictions: Any, global_size: Any = None
    ) -> tf.Tensor:
        """Returns values [n] whose mean over all examples is Keras's metric."""
        del global_size
        of_output = self.resolved.of_output(labels, predictions)
        values = in_columns(function_of_metric(self.resolved.metric), *of_output)
        dtype = self.resolved.metric.dtype
        return of_rows(tf.reduce_mean, tf.cast(values, dtype), of_output[1], self.title)

    def reduced(self, labels: Any, predictions: Any) -> tf.Tensor:
        """Returns the metric of the batch, as its `update_state` counts it."""
        metric = self.resolved.metric
        values = function_of_metric(metric)(
            *self.resolved.of_output(labels, predictions)
        )
        return tf.reduce_mean(tf.cast(values, metric.dtype))


def _losses(
    compiled: AsCompiled, names: Sequence[str] | None, labels: Any, predictions: Any
) -> Sequence[_Loss]:
    _check_names(compiled.loss, names, labels, predictions)
    resolved = losses_by_output(
        compiled.loss, compiled.loss_weights, names, labels, predictions
    )
    if not resolved:
        raise UsageError("no loss is of an output of the model: give one.")
    if len(resolved) > 1 and not tf.nest.is_nested(predictions):
        raise UsageError(
            f"the model has one output and {len(resolved)} losses, of which fit "
            "minimizes the first alone: give one loss."
        )
    return [_Loss(one) for one in resolved]


def _check_names(
    loss: Any, names: Sequence[str] | None, labels: Any, predictions: Any
) -> None:
    """Says what Keras refuses as an object of another type."""
    of_names = isinstance(predictions, Mapping)
    if isinstance(loss, Mapping) and not (names or of_names):
        raise UsageError(
            "no loss is of an output of the model: there are losses of "
            f"{', '.join(loss)}, and its output has no name: give one loss."
        )
    if not (of_names and isinstance(labels, Mapping)):
        return
    wanted = loss if isinstance(loss, Mapping) else predictions
    for output in wanted:
        if output not in labels:
            raise UsageError(
                f"the data has no labels of output {output!r}; it has labels of "
                f"{', '.join(labels)}: name both alike."
            )


def _metrics(
    compiled: AsCompiled, names: Sequence[str] | None, labels: Any, predictions: Any
) -> Mapping[str, _Mean]:
    if not compiled.metrics and not compiled.weighted_metrics:
        return {}
    resolved = metrics_by_output(
        compiled.metrics, compiled.weighted_metrics, names, labels, predictions
    )
    for one in resolved:
        _require_mean(one.metric)
    named = metric_names(resolved)
    if "loss" in named:
        raise UsageError("a metric is named 'loss', as the loss is: rename it.")
    return {name: _Mean(name, one) for name, one in zip(named, resolved, strict=True)}


def _require_mean(metric: keras.metrics.Metric) -> None:
    """Raises UsageError unless a metric is the mean of a function's values."""
    kind, mean = type(metric), keras.metrics.MeanMetricWrapper
    is_mean = isinstance(metric, mean) and (
        (kind.update_state, kind.result) == (mean.update_state, mean.result)
    )
    if not is_mean:
        raise UsageError(
            f"the metric {metric.name!r} is not a mean over "
            "examples, as accuracy or mean_absolute_error are: leave it out, and use "
            "it on the trained model."
        )


def _named_accuracy(metrics: Any) -> Any:
    """Returns the same metrics, with one name for accuracy in files and charts."""
    if metrics is None:
        return None
    return keras.tree.map_structure(
        lambda given: "accuracy" if _is_accuracy(given) else given, metrics
    )


def _is_accuracy(given: Any) -> bool:
    return isinstance(given, str) and given.lower() in _ACCURACY


def _in_floatx(labels: Any) -> Any:
    """Returns labels as `fit` hands them on: floating ones in Keras's floatx."""

    def converted(label: Any) -> tf.Tensor:
        label = tf.convert_to_tensor(label)
        return (
            tf.cast(label, keras.config.floatx()) if label.dtype.is_floating else label
        )

    return tf.nest.map_structure(converted, labels)
