"""The objective of a model that trains, evaluates or computes its loss by itself.

Keras's own `train_step` and `test_step` call what a class overrides: `compute_loss`,
`compute_metrics` or the steps themselves. Each replica runs them on its shard, inside
of an `UpdateCatcher`. Metrics start from nothing in each step, and what a shard adds to
their variables is summed over replicas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from models.base import (
    LATEST,
    AsCompiled,
    EvalOutputs,
    Summed,
    Totals,
    Values,
    means_over_examples,
    separated,
)
from strategies.common.errors import UsageError
from strategies.common.types import Batch
from trainers.user_code.counting_metric import change_of, total_of
from trainers.user_code.metrics import numbered
from trainers.user_code.update_catcher import UpdateCatcher

# Between the position of a metric and that of its variable, in names of sums.
_STATE = "/own_state/"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnMetric:
    """A metric that a step updates.

    Attributes:
      metric: Metric of the model.
      initial: Values of its variables before any example.
      is_per_batch: True if a batch counts once, and not each example: the metric gets
        means over the batch, as `Mean.update_state(loss)` does.
    """

    metric: keras.metrics.Metric
    initial: Sequence[np.ndarray]
    is_per_batch: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelStep:
    """`train_step` or `test_step` of a model, with what it reports.

    Attributes:
      model: Model.
      name: Name of the method.
      metrics: Metrics that the method may update.
      sources: For each reported name the position of a metric and the name in its
        result, which is empty if the result is one number; None for any other number.
    """

    model: keras.Model
    name: str
    metrics: Sequence[OwnMetric]
    sources: Mapping[str, tuple[int, str] | None] = dataclasses.field(
        default_factory=dict
    )

    def run(
        self,
        batch: Batch,
        mapped: Sequence[tuple[keras.Variable, Any]],
        scale: tf.Tensor | None = None,
        former: Sequence[Mapping[int, tf.Tensor]] = (),
    ) -> tuple[UpdateCatcher, Mapping[str, Any]]:
        """Runs the method on the rows of a batch.

        Args:
          batch: Rows of one replica.
          mapped: Values in place of variables.
          scale: Factor for losses in half precision; None for one.
          former: See `UpdateCatcher`.

        Returns:
          The scope with what the method has changed, and its logs.
        """
        metrics = [
            (variable, value)
            for own in self.metrics
            for variable, value in zip(own.metric.variables, own.initial, strict=True)
        ]
        with UpdateCatcher([*metrics, *mapped], scale, former) as scope:
            logs = self.call(batch)
        return scope, flat_logs(logs, f"{type(self.model).__name__}.{self.name}")

    def call(self, batch: Batch) -> Any:
        """Calls the method with data as `fit` has them, and returns its logs."""
        labels, weights = separated(batch.labels)
        # Data without labels have an empty structure of them.
        has_labels = bool(tf.nest.flatten(labels))
        data = keras.utils.pack_x_y_sample_weight(
            batch.features, labels if has_labels else None, weights
        )
        return getattr(self.model, self.name)(data)

    def changes(self, scope: UpdateCatcher) -> list[list[tf.Tensor]]:
        """Returns what the variables of each metric have changed by in a scope."""
        return [
            [
                change_of(scope.get_current_value(variable), tf.constant(old))
                for variable, old in zip(own.metric.variables, own.initial, strict=True)
            ]
            for own in self.metrics
        ]

    def values(
        self, batch: Batch, scope: UpdateCatcher, logs: Mapping[str, Any]
    ) -> Values:
        """Returns what the rows of a batch add to the sums of a global batch.

        Args:
          batch: Batch as in `run`.
          scope: Scope that `run` returned.
          logs: Logs that `run` returned.
        """
        share = batch.num_rows / batch.global_size
        numbers = {
            name: tf.reduce_mean(tf.cast(value, tf.float64))
            for name, value in logs.items()
        }
        found: dict[str, Any] = {"loss": self._of_rows(batch, numbers)}
        for index, changes in enumerate(self.changes(scope)):
            own = self.metrics[index]
            for place, change in enumerate(changes):
                if own.is_per_batch:
                    change = tf.cast(change, tf.float64) * share
                found[f"{self.name}/{index}{_STATE}{place}"] = Summed(change)
        for name, source in self.sources.items():
            if source is None:
                found[f"{LATEST}{self.name}/{name}"] = Summed(numbers[name] * share)
        return found

    def _of_rows(self, batch: Batch, numbers: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of each row."""
        loss = numbers.get(self.loss_name, tf.zeros([]))
        rows = tf.shape(tf.nest.flatten(batch.features)[0])[:1]
        return tf.fill(rows, loss)

    @property
    def loss_name(self) -> str:
        """Name of the number that stands for the loss: `loss`, or the first one."""
        return "loss" if "loss" in self.sources else next(iter(self.sources), "")

    def results(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Returns the logs of all examples of some sums."""
        state: list[tuple[keras.Variable, Any]] = []
        for index, own in enumerate(self.metrics):
            for place, (variable, old) in enumerate(
                zip(own.metric.variables, own.initial, strict=True)
            ):
                total = sums[f"{self.name}/{index}{_STATE}{place}"]
                state.append((variable, total_of(old, total, variable)))
        results: dict[int, Any] = {}
        found: dict[str, float] = {}
        with keras.StatelessScope(state):
            for name, source in self.sources.items():
                if source is None:
                    found[name] = float(sums[f"{LATEST}{self.name}/{name}"])
                    continue
                index, key = source
                if index not in results:
                    results[index] = self.metrics[index].metric.result()
                value = results[index][key] if key else results[index]
                found |= numbered({name: value})
        return found


class OwnUpdate(NamedTuple):
    """One update of a step.

    Attributes:
      optimizer: Optimizer.
      variables: Variables that it updates.
    """

    optimizer: keras.optimizers.Optimizer
    variables: Sequence[keras.Variable]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnStep:
    """The steps of a model and what they report. Satisfies `Objective`.

    Attributes:
      train: Its `train_step`.
      test: Its `test_step`; None without examples to evaluate on.
      is_sum: True if gradients are sums over a batch, and not means.
      updates: Updates of a step, in order.
      num_passes: How often a step is computed: once for each update, and once more if
        it reads what the last one has changed.
      remark: Warning about what replicas cannot do alike; None for none.
    """

    train: ModelStep
    test: ModelStep | None
    is_sum: bool = False
    updates: Sequence[OwnUpdate] = ()
    num_passes: int = 1
    remark: str | None = None

    def values(self, model: Any, batch: Any, training: bool) -> Values:
        """See `Objective`."""
        step = self.train if training else self.test
        if step is None:
            raise RuntimeError("there are no examples to evaluate on")
        scope, logs = step.run(batch, regularized_weights(step.model))
        return step.values(batch, scope, logs)

    def of_predictions(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        totals: Mapping[str, Any] | None = None,
    ) -> Values:
        """See `Objective`."""
        raise UsageError(
            f"a {self.train.name} of the model's own needs the whole model, which "
            "model_parallel has in stages: choose another --strategy."
        )

    def judged(self, model: Any, batch: Any) -> EvalOutputs:
        """See `Objective`."""
        return EvalOutputs(self.values(model, batch, training=False), None)

    def results(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """See `Objective`."""
        others = {
            name: value
            for name, value in sums.items()
            if _STATE not in name and not name.startswith(LATEST)
        }
        return {**means_over_examples(others), **self._step_of(sums).results(sums)}

    def _step_of(self, sums: Mapping[str, Any]) -> ModelStep:
        if self.test is None:
            return self.train
        of_test = (f"{self.test.name}/", f"{LATEST}{self.test.name}/")
        is_test = any(name.startswith(of_test) for name in sums)
        return self.test if is_test else self.train

    @property
    def totals(self) -> Totals | None:
        """See `Objective`."""
        return None

    @property
    def has_layer_losses(self) -> bool:
        """See `Objective`."""
        return True

    @property
    def compiled(self) -> AsCompiled | None:
        """See `Objective`."""
        return None


def reported_names(objective: Any, training: bool) -> Collection[str] | None:
    """Returns the names that a step of the model's own reports; None for all."""
    if not isinstance(objective, OwnStep):
        return None
    step = objective.train if training else objective.test
    return None if step is None else step.sources.keys()


def loss_name_of(objective: Any) -> str:
    """Returns the name that the loss has in the logs of `fit`."""
    return objective.train.loss_name if isinstance(objective, OwnStep) else "loss"


def remark_of(objective: Any) -> str | None:
    """Returns the remark of a step of the model's own; None for other objectives."""
    return objective.remark if isinstance(objective, OwnStep) else None


def regularized_weights(model: keras.Model) -> list[tuple[keras.Variable, Any]]:
    """Returns regularized variables with their own values, for a StatelessScope.

    `Model.losses` asks the scope for the value of each (keras/src/layers/layer.py,
    `_get_regularization_losses`).
    """
    return [
        (variable, variable.value)
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]


def flat_logs(logs: Any, title: str) -> dict[str, Any]:
    """Returns logs by name; a metric's result may be a dictionary of several."""
    if logs is None:
        return {}
    if not isinstance(logs, Mapping):
        raise UsageError(
            f"{title} returned a {type(logs).__name__}: return a dictionary of numbers "
            "by name."
        )
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return found
