"""Compiled metrics as sums over examples, so that shards of a batch can be added.

A metric that is the mean of a function is computed for each example. Any other metric
keeps counts in its variables (thresholds of AUC, a confusion matrix, sums of squares):
each shard adds its counts to the sum, and the result is computed from the total.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import AsCompiled, as_logs, means_over_examples
from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import (
    OutputMetric,
    function_of_metric,
    metric_results,
    metrics_by_output,
)
from trainers.user_code.counting_metric import STATE, CountingMetric, check_state
from trainers.user_code.probe import Probe
from trainers.user_code.unreduced import in_columns, of_rows


@dataclasses.dataclass(frozen=True, slots=True)
class MeanOverExamples:
    """A metric that is the mean of a function's values. Satisfies `Judge`.

    Attributes:
      name: Name that `evaluate` reports it by.
      resolved: The metric as Keras resolves it.
    """

    name: str
    resolved: OutputMetric

    @property
    def title(self) -> str:
        return f"the metric {self.name!r}"

    def __call__(self, labels: Any, predictions: Any, **_: Any) -> tf.Tensor:
        """Returns values [n] whose mean over all examples is Keras's metric."""
        of_output = self.resolved.of_output(labels, predictions)
        values = in_columns(function_of_metric(self.resolved.metric), *of_output)
        dtype = self.resolved.metric.dtype
        return of_rows(tf.reduce_mean, tf.cast(values, dtype), of_output[1], self.title)

    def weight_of_rows(self, labels: Any, predictions: Any, weights: Any) -> None:
        """See `Judge`."""

    def reduced(self, labels: Any, predictions: Any) -> tf.Tensor:
        """Returns the metric of the batch, as its `update_state` counts it."""
        metric = self.resolved.metric
        values = function_of_metric(metric)(
            *self.resolved.of_output(labels, predictions)
        )
        return tf.reduce_mean(tf.cast(values, metric.dtype))


@dataclasses.dataclass(frozen=True, slots=True)
class Metrics:
    """All metrics that a model was compiled with.

    Attributes:
      means: Metrics that are means over examples, by name.
      counting: Metrics that count.
      resolved: All of them, in Keras's order.
    """

    means: Mapping[str, MeanOverExamples]
    counting: Sequence[CountingMetric]
    resolved: Sequence[OutputMetric]

    def values(self, labels: Any, predictions: Any, weights: Any) -> dict[str, Any]:
        """Returns the value of each of n examples, or sums over them, by name.

        Weights are sample weights; None for 1 each.
        """
        found: dict[str, Any] = {
            name: metric(labels, predictions) for name, metric in self.means.items()
        }
        for metric in self.counting:
            found |= metric.counts(labels, predictions, weights)
        return found

    def results(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Returns means over examples, and results of counts; see `Objective`."""
        means = means_over_examples(
            {name: value for name, value in sums.items() if STATE not in name}
        )
        if not self.counting:
            return means
        found = metric_results(self.resolved, self.state(sums))
        # Metrics whose means are above are rounded to their types.
        counted = {
            name: value for name, value in found.items() if name not in self.means
        }
        return {**means, **as_logs(counted)}

    def state(self, sums: Mapping[str, Any]) -> list[tuple[keras.Variable, Any]]:
        """Returns the variables of all metrics with values, from sums of `values`."""
        state = [pair for metric in self.counting for pair in metric.total(sums)]
        for name, mean in self.means.items():
            metric = mean.resolved.metric
            state += [(metric.total, sums[name]), (metric.count, sums["examples"])]
        return state


def resolve_metrics(
    compiled: AsCompiled,
    names: Sequence[str] | None,
    probe: Probe,
    weights: Any,
    model: keras.Model | None,
) -> Metrics:
    """Resolves the metrics that a model was compiled with, by a few examples.

    See `losses_of`. The examples may have sample weights.

    Raises:
      UsageError: A metric cannot be summed over examples.
    """
    if not compiled.metrics and not compiled.weighted_metrics:
        return Metrics({}, [], [])
    labels, predictions, _ = probe
    resolved = metrics_by_output(
        compiled.metrics, compiled.weighted_metrics, names, labels, predictions, model
    )
    for metric in resolved:
        # Some metrics make their variables with the first examples.
        of_output = metric.of_output(labels, predictions)
        metric.metric.update_state(*of_output)
        metric.metric.reset_state()
        # Once more, because the first values are not those of `reset_state`.
        initial = [variable.numpy() for variable in metric.metric.variables]
        metric.metric.update_state(*of_output)
        later = [variable.numpy() for variable in metric.metric.variables]
        check_state(metric.metric, initial, later)
    # One for each metric, also for one whose result is a dictionary.
    owners = list(metric_results(resolved, []))
    for name in ("loss", "examples"):
        if name in owners:
            raise UsageError(
                f"a metric is named {name!r}, as another sum of a step is: rename it."
            )
    means, counting = {}, []
    for name, metric in zip(owners, resolved, strict=True):
        # A mask weighs the values of every metric, and sample weights of some metrics.
        if _is_mean(metric, weights) and not probe.is_masked:
            means[name] = MeanOverExamples(name, metric)
            continue
        # Once more, because the first values are not those of `reset_state`.
        initial = [variable.numpy() for variable in metric.metric.variables]
        counting.append(CountingMetric(name, metric, initial))
        counting[-1].check_sums(labels, predictions, weights)
    return Metrics(means, counting, resolved)


def _is_mean(metric: OutputMetric, weights: Any) -> bool:
    """Returns whether a metric is the unweighted mean of a function's values."""
    kind, mean = type(metric.metric), keras.metrics.MeanMetricWrapper
    is_mean = isinstance(metric.metric, mean) and (
        (kind.update_state, kind.result) == (mean.update_state, mean.result)
    )
    return is_mean and not (metric.is_weighted and weights is not None)
