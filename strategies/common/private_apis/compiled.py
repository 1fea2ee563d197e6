"""Private names of losses and metrics that a model was compiled with."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.trainers import compile_utils


class Compiled(NamedTuple):
    """The arguments of `keras.Model.compile` except a loss.

    Attributes:
      loss_weights: A number, or a list or dict by output; None for 1 each.
      metrics: A list or dict by output; None for none.
      weighted_metrics: The same, for metrics that sample weights apply to.
    """

    loss_weights: Any
    metrics: Any
    weighted_metrics: Any


def compiled_with(model: keras.Model) -> Compiled:
    """Returns the arguments that a model was compiled with.

    `Model.loss` is public. `Model.metrics` is empty until `fit` has run, and
    `get_compile_config` describes a user's functions by names, from which the functions
    cannot be recovered (keras/src/trainers/compile_utils.py, `CompileMetrics` and
    `CompileLoss`).
    """
    loss, metrics = model._compile_loss, model._compile_metrics
    return Compiled(
        loss_weights=None if loss is None else loss._user_loss_weights,
        metrics=None if metrics is None else metrics._user_metrics,
        weighted_metrics=None if metrics is None else metrics._user_weighted_metrics,
    )


class OutputLoss(NamedTuple):
    """The loss of one output of a model, as `fit` resolves it.

    Attributes:
      name: Name of the output, or of the loss where outputs have no names.
      loss: A Keras loss; a function is wrapped as `fit` wraps it.
      weight: Factor of the loss in the total; None for 1.
      compiled: The `CompileLoss` of all outputs.
      position: Position of this loss among the losses of all outputs.
    """

    name: str
    loss: keras.losses.Loss
    weight: float | None
    compiled: Any
    position: int

    @property
    def mean(self) -> keras.metrics.Mean | None:
        """Metric in which `fit` keeps this loss; None of a loss alone."""
        metrics = self.compiled.metrics
        return metrics[self.position] if metrics else None

    def computed_by(self, loss: keras.losses.Loss) -> Callable[..., Any]:
        """Returns the loss of this output, a function of all labels and predictions.

        A third argument has sample weights. Keras pairs labels with outputs and
        converts types, as in `fit`.

        Args:
          loss: Takes the place of this output's loss.
        """
        # `copy.copy` of a Keras object would save it to a file and load that.
        alone = object.__new__(type(self.compiled))
        alone.__dict__.update(self.compiled.__dict__)
        flat = alone._flat_losses[self.position]
        alone._flat_losses = [flat._replace(loss=loss, loss_weights=None)]
        # Otherwise each call would add to running means, which are variables.
        alone._metrics = [None]
        return alone


def loss_tracker(model: keras.Model) -> keras.metrics.Mean:
    """Returns the metric in which `fit` keeps the loss of a compiled model.

    `Model.metrics` has it too, unless a class overrides that property.
    """
    return model._loss_tracker


def means_of_output_losses(model: keras.Model) -> Sequence[keras.metrics.Mean]:
    """Returns the metrics in which `fit` keeps the losses of several outputs.

    Each counts batches: it is weighted by the number of rows, which the graph of `fit`
    does not know (keras/src/trainers/compile_utils.py, `CompileLoss.call`).
    """
    metrics = getattr(model._compile_loss, "metrics", ())
    return [metric for metric in metrics if metric is not None]


def losses_by_output(
    loss: Any,
    loss_weights: Any,
    output_names: Sequence[str] | None,
    labels: Any,
    predictions: Any,
    model: keras.Model | None = None,
) -> Sequence[OutputLoss]:
    """Resolves the loss argument of `compile` as `fit` does with its first batch.

    Names such as "crossentropy" are resolved by shapes, functions are wrapped, and
    structures are matched with the model's outputs. No public function does this
    (keras/src/trainers/compile_utils.py, `CompileLoss.call`). Call it outside of a
    strategy's scope: Keras makes a running mean for each of several losses.

    With a model, which is compiled with the losses, the running means are its own.

    Raises:
      Exception: Any exception that `fit` raises.
    """
    compiled = None if model is None else model._compile_loss
    if compiled is None:
        compiled = compile_utils.CompileLoss(
            loss, loss_weights, output_names=output_names
        )
    compiled(labels, predictions)
    for metric in compiled.metrics:
        metric.reset_state()
    return [
        OutputLoss(flat.name, flat.loss, flat.loss_weights, compiled, position)
        for position, flat in enumerate(compiled._flat_losses)
    ]


class OutputMetric(NamedTuple):
    """A metric of one output of a model, as `fit` resolves it.

    Attributes:
      metric: A Keras metric; a function is wrapped as `fit` wraps it.
      position: Position of the output among all.
      is_weighted: True if sample weights apply to it.
      compiled: The `CompileMetrics` of all outputs.
    """

    metric: keras.metrics.Metric
    position: int
    is_weighted: bool
    compiled: Any

    def of_output(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        """Returns the labels and predictions of this metric's output."""
        flatten = self.compiled._flatten_y
        return flatten(labels)[self.position], flatten(predictions)[self.position]

    def weights_of_output(self, labels: Any, weights: Any) -> Any:
        """Returns the sample weights that apply to this metric, or None.

        Weights that are given once apply to every output (keras/src/trainers/
        compile_utils.py, `CompileMetrics.update_state`).
        """
        if weights is None or not self.is_weighted:
            return None
        flatten = self.compiled._flatten_y
        flat = flatten(weights)
        is_shared = len(flat) < len(flatten(labels))
        return flat[0 if is_shared else self.position]


def metrics_by_output(
    metrics: Any,
    weighted_metrics: Any,
    output_names: Sequence[str] | None,
    labels: Any,
    predictions: Any,
    model: keras.Model | None = None,
) -> Sequence[OutputMetric]:
    """Resolves the metrics arguments of `compile` as `fit` does with its first batch.

    "accuracy" is one of three metrics, chosen by shapes. No public function does this
    (keras/src/trainers/compile_utils.py, `CompileMetrics.build`). Call it outside of a
    strategy's scope: metrics have variables.

    With a model, which is compiled with the metrics, its own are returned.

    Raises:
      Exception: Any exception that `fit` raises.
    """
    compiled = None if model is None else model._compile_metrics
    if compiled is None:
        compiled = compile_utils.CompileMetrics(
            metrics, weighted_metrics, output_names=output_names
        )
    if not compiled.built:
        compiled.build(labels, predictions)
    groups = (compiled._flat_metrics, compiled._flat_weighted_metrics)
    return [
        OutputMetric(metric, position, group is groups[1], compiled)
        for group in groups
        for position, listed in enumerate(group)
        if listed is not None
        for metric in listed.metrics
    ]


def metric_results(
    metrics: Sequence[OutputMetric], state: Sequence[tuple[keras.Variable, Any]]
) -> Mapping[str, Any]:
    """Returns the results of metrics by the names that `evaluate` reports them by.

    Names begin with the output's name where there are several outputs, and end with a
    number where two are alike (keras/src/trainers/compile_utils.py,
    `CompileMetrics.result`).

    Args:
      metrics: All of one call of `metrics_by_output`.
      state: Values in place of the metrics' variables. Other variables count as zero,
        because to read a strategy's variables is a collective call.
    """
    if not metrics:
        return {}
    compiled = metrics[0].compiled
    zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in compiled.variables]
    with keras.StatelessScope([*zeros, *state]):
        # A result may be a variable, whose value outside of the scope is another.
        return tf.nest.map_structure(tf.convert_to_tensor, compiled.result())


def function_of_metric(
    metric: keras.metrics.MeanMetricWrapper,
) -> Callable[[Any, Any], tf.Tensor]:
    """Returns the function of labels and predictions that such a metric averages.

    Metrics such as `TopKCategoricalAccuracy` hold their function and its arguments
    without a public name (keras/src/metrics/reduction_metrics.py,
    `MeanMetricWrapper.update_state`).
    """
    return functools.partial(metric._fn, **metric._fn_kwargs)
