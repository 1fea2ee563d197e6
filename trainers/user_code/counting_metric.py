"""A metric whose variables are sums over examples, added up over shards."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.objective import Summed
from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import OutputMetric
from trainers.user_code import PerBatchError
from trainers.user_code.few_examples import rows_of
from trainers.user_code.independence import agree, shapes_of

# Between the name of a metric and the number of its variable, in names of sums.
STATE = "/state/"


@dataclasses.dataclass(frozen=True, slots=True)
class CountingMetric:
    """A metric whose variables are sums over examples.

    Attributes:
      name: Name that `evaluate` reports it by, or that of the first of its values.
      resolved: The metric as Keras resolves it.
      initial: Values of its variables before any example.
    """

    name: str
    resolved: OutputMetric
    initial: Sequence[np.ndarray]

    def counts(
        self, labels: Any, predictions: Any, weights: Any
    ) -> Mapping[str, Summed]:
        """Returns what n examples add to the variables, by names of sums.

        Weights are sample weights; None for 1 each.
        """
        initial = [tf.constant(value) for value in self.initial]
        updated = self._updated(initial, labels, predictions, weights)
        return {
            f"{self.name}{STATE}{index}": Summed(change_of(new, old))
            for index, (new, old) in enumerate(zip(updated, initial, strict=True))
        }

    def _updated(
        self, state: Sequence[Any], labels: Any, predictions: Any, weights: Any
    ) -> Sequence[tf.Tensor]:
        of_output = self.resolved.of_output(labels, predictions)
        own = self.resolved.weights_of_output(labels, weights)
        metric = self.resolved.metric
        if own is None:
            return metric.stateless_update_state(list(state), *of_output)
        return metric.stateless_update_state(list(state), *of_output, sample_weight=own)

    def total(self, sums: Mapping[str, Any]) -> list[tuple[keras.Variable, Any]]:
        """Returns the variables with their values, from sums of what `counts` gave."""
        return [
            (variable, total_of(initial, sums[f"{self.name}{STATE}{index}"], variable))
            for index, (variable, initial) in enumerate(
                zip(self.resolved.metric.variables, self.initial, strict=True)
            )
        ]

    def check_sums(self, labels: Any, predictions: Any, weights: Any) -> None:
        """Refuses counts of a few examples that do not add up from two halves."""
        given = (labels, predictions, weights)
        num_rows = tf.nest.flatten(predictions)[0].shape[0]
        halves = [
            [rows_of(value, rows) for value in given]
            for rows in (range(num_rows // 2), range(num_rows // 2, num_rows))
        ]
        # Sums of the parts must be the sums of the whole, as replicas add them.
        whole = self.counts(*given)
        first, second = (self.counts(*half) for half in halves)
        # From the state after the first half: a maximum is no sum, though that of the
        # halves may happen to be.
        initial = [tf.constant(value) for value in self.initial]
        in_turn = self._updated(self._updated(initial, *halves[0]), *halves[1])
        for index, (name, count) in enumerate(whole.items()):
            parts = first[name].total + second[name].total
            last = change_of(in_turn[index], initial[index])
            if not (agree(count.total, parts) and agree(last, parts)):
                of_output = self.resolved.of_output(labels, predictions)
                raise PerBatchError(not_sums(self.name, *of_output))


def check_state(
    metric: keras.metrics.Metric, initial: Sequence[Any], later: Sequence[Any]
) -> None:
    """Refuses a metric of which an epoch depends on earlier ones.

    Args:
      metric: Metric, whose variables have their initial values afterwards.
      initial: Values of its variables after `reset_state`.
      later: Values of its variables after some examples.

    Raises:
      UsageError: `result` changes the state, or `reset_state` keeps a part of it.
    """
    fault = None
    _assign(metric, later)
    metric.result()
    if not _has_values(metric, later):
        fault = "changes its state in result"
    metric.reset_state()
    # It may also keep a part in Python, such as a list of epochs.
    is_reset, attributes = _has_values(metric, initial), repr(vars(metric))
    metric.reset_state()
    if not is_reset or repr(vars(metric)) != attributes:
        fault = fault or "keeps a part of its state in reset_state"
    _assign(metric, initial)
    if fault:
        raise UsageError(
            f"the metric {metric.name!r} {fault}, and each step here begins with an "
            "empty metric: let update_state alone add to its variables, and let "
            "reset_state set them to constants, or leave the metric out, and use it "
            "on the trained model."
        )


def _assign(metric: keras.metrics.Metric, values: Sequence[Any]) -> None:
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(value)


def _has_values(metric: keras.metrics.Metric, values: Sequence[Any]) -> bool:
    found = (variable.numpy() for variable in metric.variables)
    return all(map(functools.partial(np.array_equal, equal_nan=True), found, values))


def not_sums(name: str, labels: Any = None, predictions: Any = None) -> str:
    """Returns the message for a metric that does not add up over examples.

    Labels and predictions belong to its output; None if they are not known.
    """
    shapes, remedy = _shapes_and_remedy(labels, predictions)
    return (
        f"the metric {name!r} keeps numbers that are not sums over examples{shapes}, "
        f"so that replicas cannot add theirs: {remedy + ', or ' if remedy else ''}"
        "leave it out, and use it on the trained model."
    )


def counts_combinations(name: str, labels: Any = None, predictions: Any = None) -> str:
    """Returns the warning for a metric that adds up over batches, not over examples."""
    shapes, remedy = _shapes_and_remedy(labels, predictions)
    return (
        f"the metric {name!r} counts combinations of the examples of a batch{shapes}, "
        "and replicas count those of their shards, so that its value depends on their "
        "number"
        f"{': ' + remedy if remedy else ''}"
    )


def _shapes_and_remedy(labels: Any, predictions: Any) -> tuple[str, str]:
    """Returns the shapes, and the remedy, of labels [n] beside predictions [n, 1].

    A comparison of them is [n, n], without an error. Both texts are empty for equal
    numbers of axes.
    """
    if labels is None or len(labels.shape) == len(predictions.shape):
        return "", ""
    return f" ({shapes_of(labels, predictions)})", (
        "make tensors that it compares of one shape, because [n] and [n, 1] give [n, n]"
    )


def change_of(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns what was added, in a type that has negative numbers."""
    if new.dtype.is_floating:
        return new - old
    return tf.cast(new, tf.int64) - tf.cast(old, tf.int64)


def total_of(initial: np.ndarray, total: Any, variable: keras.Variable) -> tf.Tensor:
    """Returns the value of a metric's variable after a sum has been added."""
    value = initial + np.reshape(np.asarray(total), variable.shape)
    if "float" not in variable.dtype:
        # The parts of a batch may add up to a little less than one.
        value = np.rint(value)
    return tf.constant(value.astype(variable.dtype), variable.dtype)
