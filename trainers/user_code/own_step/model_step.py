"""One of Keras's steps of a model, run on the rows of a replica."""

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.objective import LATEST, Summed, Values, as_logs, separated
from strategies.common.private_apis.models import (
    TrainableParts,
    made_to_be_trained,
    trainable_as,
)
from strategies.common.types import Batch
from trainers.user_code.counting_metric import change_of, total_of
from trainers.user_code.own_step.reported import (
    Computed,
    Result,
    as_numbers,
    flat_logs,
)
from trainers.user_code.own_step.update_catcher import StepLeft, UpdateCatcher

# Between the position of a metric and that of its variable, in names of sums.
STATE = "/own_state/"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnMetric:
    """A metric that a step updates.

    Attributes:
      metric: Metric of the model.
      initial: Values of its variables before any example.
      counting_batches: Positions of its variables to which a batch counts once, and not
        each example.
      gets_sums: True if it averages sums over the batch, such as losses without a
        mean. Its first variable is then a sum of them.
      combines: True if it counts neither examples nor batches, but combinations of the
        examples of a batch, such as pairs. Counts of batches add up.
    """

    metric: keras.metrics.Metric
    initial: Sequence[np.ndarray]
    counting_batches: Collection[int] = ()
    gets_sums: bool = False
    combines: bool = False

    @property
    def is_per_batch(self) -> bool:
        """True if it gets means over the batch, as `Mean.update_state(loss)` does."""
        return len(self.counting_batches) == len(self.initial) > 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelStep:
    """`train_step` or `test_step` of a model, with what it reports.

    Attributes:
      model: Model.
      name: Name of the method.
      metrics: Metrics that the method may update.
      trainable: Flags that the method begins with; it may set some.
      sources: Result of a metric, or computation of several, for each reported name;
        None for any other number.
      summed: Reported names of numbers that are sums over examples, and not means.
      divides_penalties: True if a shard has its fraction of the model's `losses`, which
        stand beside a sum over examples.
    """

    model: keras.Model
    name: str
    metrics: Sequence[OwnMetric]
    trainable: TrainableParts
    sources: Mapping[str, Result | Computed | None] = dataclasses.field(
        default_factory=dict
    )
    summed: Collection[str] = ()
    divides_penalties: bool = False

    def run(
        self,
        batch: Batch,
        mapped: Sequence[tuple[keras.Variable, Any]],
        scale: tf.Tensor | None = None,
        former: Sequence[Mapping[int, tf.Tensor]] = (),
        num_updates: int | None = None,
    ) -> tuple[UpdateCatcher, Mapping[str, Any]]:
        """Runs the method on the rows of a replica; see `UpdateCatcher`.

        Returns:
          The scope with what the method has changed, and its logs, which are empty if
          the method was left after some updates.
        """
        metrics = [
            (variable, value)
            for own in self.metrics
            for variable, value in zip(own.metric.variables, own.initial, strict=True)
        ]
        # Every step begins with empty metrics, so that shards add up over replicas and
        # steps, and no replica writes a variable.
        trained = made_to_be_trained(self.model)
        # An empty shard has the row that it carries.
        fraction = tf.maximum(batch.num_rows, 1) / batch.global_size
        arguments = (scale, former, trained, num_updates, fraction)
        logs = None
        with (
            trainable_as(self.model, self.trainable),
            UpdateCatcher([*metrics, *mapped], *arguments) as scope,
            contextlib.suppress(StepLeft),
        ):
            scope.penalty_scale = fraction if self.divides_penalties else None
            logs = tf.nest.map_structure(self._read, self.call(batch))
        return scope, flat_logs(logs, f"{type(self.model).__name__}.{self.name}")

    def _read(self, value: Any) -> Any:
        """Returns the value that a reported variable has after a step.

        The result of a metric may be its variable, by which `source_of` knows it.
        """
        of_metrics = (v for own in self.metrics for v in own.metric.variables)
        if not isinstance(value, keras.Variable) or any(v is value for v in of_metrics):
            return value
        return tf.convert_to_tensor(value)

    def call(self, batch: Batch) -> Any:
        """Calls the method with data as `fit` has them, and returns its logs."""
        return getattr(self.model, self.name)(as_fit_has_it(batch))

    def changes(self, scope: UpdateCatcher) -> list[list[tf.Tensor]]:
        """Returns how much each variable of each metric has changed in a scope."""
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
        """Returns what a batch adds to the sums of a global batch; see `run`."""
        share = batch.num_rows / batch.global_size
        loss = as_numbers(logs).get(self.loss_name, tf.zeros([]))
        # Rows are weighted as those of a mean; a sum is already the shard's part.
        if self.loss_name in self.summed:
            loss = tf.math.divide_no_nan(loss, share)
        rows = tf.shape(tf.nest.flatten(batch.features)[0])[:1]
        found: dict[str, Any] = {"loss": tf.fill(rows, loss)}
        for index, changes in enumerate(self.changes(scope)):
            own = self.metrics[index]
            for place, change in enumerate(changes):
                # A shard is a fraction of the one batch that Keras would count.
                if place in own.counting_batches:
                    change = tf.cast(change, tf.float64) * share
                # The sum over a shard is already its part of the sum over the batch.
                if own.gets_sums and not place:
                    change = tf.math.divide_no_nan(tf.cast(change, tf.float64), share)
                found[f"{self.name}/{index}{STATE}{place}"] = Summed(change)
        return found | self._latest(logs, share)

    def _latest(self, logs: Mapping[str, Any], share: tf.Tensor) -> dict[str, Summed]:
        """Returns the shard's part of each number that is not a metric's result."""
        found = {}
        for name in (name for name, source in self.sources.items() if source is None):
            value = tf.cast(logs[name], tf.float64)
            # Shards have values of other examples, and files one loss.
            if name == self.loss_name or not value.shape.is_fully_defined():
                value = tf.reduce_mean(value)
            part = value if name in self.summed else value * share
            found[f"{LATEST}{self.name}/{name}"] = Summed(part)
        return found

    @property
    def loss_name(self) -> str:
        """Name of the number that stands for the loss: `loss`, or the first one."""
        return "loss" if "loss" in self.sources else next(iter(self.sources), "")

    def results(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the logs of all examples of some sums."""
        found: dict[str, Any] = {}

        @functools.cache
        def result(index: int, key: str) -> Any:
            whole = self.metrics[index].metric.result()
            # It may be a variable, whose value is the scope's.
            return tf.convert_to_tensor(whole[key] if key else whole)

        with keras.StatelessScope(self.metric_state(sums)):
            for name, source in self.sources.items():
                if source is None:
                    found |= as_logs({name: sums[f"{LATEST}{self.name}/{name}"]})
                elif isinstance(source, Computed):
                    values = [result(*one) for one in source.results]
                    found |= as_logs({name: source.function(*values)})
                else:
                    found |= as_logs({name: result(*source)})
        return found

    def metric_state(
        self, sums: Mapping[str, Any]
    ) -> Sequence[tuple[keras.Variable, Any]]:
        """See `Objective`."""
        state = []
        for index, own in enumerate(self.metrics):
            for place, (variable, old) in enumerate(
                zip(own.metric.variables, own.initial, strict=True)
            ):
                total = sums[f"{self.name}/{index}{STATE}{place}"]
                state.append((variable, total_of(old, total, variable)))
        return state


def as_fit_has_it(batch: Batch) -> Any:
    """Returns a batch as features, labels and sample weights, as far as it has them."""
    labels, weights = separated(batch.labels)
    # Data without labels have an empty structure of them.
    has_labels = bool(tf.nest.flatten(labels))
    return keras.utils.pack_x_y_sample_weight(
        batch.features, labels if has_labels else None, weights
    )


def regularized_weights(model: keras.Model) -> list[tuple[keras.Variable, Any]]:
    """Returns each regularized variable with its own value, for a StatelessScope.

    `Model.losses`, which a step asks for, passes the scope's value of each to its
    regularizer (keras/src/layers/layer.py, `_get_regularization_losses`).
    """
    return [
        (variable, variable.value)
        # A step may train what is frozen at its beginning.
        for variable in made_to_be_trained(model)
        if variable.regularizer is not None
    ]
