"""The objective of a model whose class overrides `compute_loss`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.base import AsCompiled, EvalOutputs, Totals, Values, separated
from strategies.common.errors import UsageError
from strategies.common.private_apis import compiled_with, losses_of_shards
from strategies.common.types import Batch
from trainers.user_code.independence import agree
from trainers.user_code.metrics import Metrics, resolve_metrics
from trainers.user_code.probe import probe


@dataclasses.dataclass(frozen=True, slots=True)
class OwnLoss:
    """The loss of `compute_loss`, and the compiled metrics. Satisfies `Objective`.

    Keras takes the loss of a batch to be a mean over its examples, so that the loss of
    a shard counts by its rows.

    Attributes:
      metrics: Reported metrics.
    """

    metrics: Metrics

    def values(self, model: Any, batch: Any, training: bool) -> Values:
        """See `Objective`."""
        predictions = model(batch.features, training=training)
        labels, weights = separated(batch.labels)
        with losses_of_shards():
            loss = model.compute_loss(
                x=batch.features,
                y=labels,
                y_pred=predictions,
                sample_weight=weights,
                training=training,
            )
        loss = tf.reduce_mean(loss)
        # Each row has the mean of its shard: the sum over rows weighs the shard.
        num_rows = tf.shape(tf.nest.flatten(batch.features)[0])[:1]
        metrics = self.metrics.values(labels, predictions, weights)
        return {"loss": tf.fill(num_rows, loss), **metrics}

    def of_predictions(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        totals: Mapping[str, Any] | None = None,
    ) -> Values:
        """See `Objective`."""
        raise UsageError(
            "an overridden compute_loss needs the whole model, which "
            "model_parallel has in stages: choose another --strategy."
        )

    def judged(self, model: Any, batch: Any) -> EvalOutputs:
        """See `Objective`."""
        return EvalOutputs(self.values(model, batch, training=False), None)

    def results(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """See `Objective`."""
        return self.metrics.results(sums)

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


def own_loss(model: keras.Model, few: Batch) -> OwnLoss:
    """Returns the objective of a model that overrides `compute_loss`.

    Args:
      model: Model before a strategy owns its variables.
      few: A few examples.

    Raises:
      UsageError: The loss is no mean over examples, or a metric cannot be summed.
    """
    # While the model's variables are still those of this process.
    _check_mean(model, few)
    examples = probe(model, few)
    _, metrics, weighted = compiled_with(model)
    labels, weights = separated(examples.labels)
    compiled = AsCompiled(loss=None, metrics=metrics, weighted_metrics=weighted)
    names = getattr(model, "output_names", None)
    found = resolve_metrics(compiled, names, examples._replace(labels=labels), weights)
    return OwnLoss(found)


def _check_mean(model: keras.Model, few: Batch) -> None:
    """Compares the loss of two examples with the mean of their losses."""
    count = tf.nest.flatten(few.features)[0].shape[0]
    parts = [
        tf.nest.map_structure(
            lambda rows, index=index: rows[index : index + 1],
            (few.features, few.labels),
        )
        for index in range(count)
    ]
    objective = OwnLoss(Metrics({}, [], []))

    def loss(features: Any, labels: Any) -> float:
        batch = few._replace(features=features, labels=labels)
        values: Any = objective.values(model, batch, training=False)["loss"]
        return float(values[0])

    whole = loss(few.features, few.labels)
    mean = float(np.mean([loss(*part) for part in parts]))
    if not agree(whole, mean):
        raise UsageError(
            f"{type(model).__name__}.compute_loss is {whole:g} for {count} examples, "
            f"and {mean:g} in the mean for one at a time: replicas share a batch, so "
            "that it has to be a mean over examples."
        )
