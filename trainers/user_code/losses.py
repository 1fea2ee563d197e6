"""Losses and metrics as Keras computes them, for each example.

`fit` takes means over a batch. A shard of a global batch needs the sum over its
examples, so that functions here return the value of each example.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import (
    AsCompiled,
    ClassPredictionsFunction,
    Predict,
    Totals,
    Values,
    predictions_of,
    separated,
)
from strategies.common.errors import UsageError
from strategies.common.private_apis.compiled import (
    compiled_with,
    loss_tracker,
)
from strategies.inner_loop.sharding import row_weights
from trainers.user_code.classes import classes_of
from trainers.user_code.independence import Judge, check_independence
from trainers.user_code.metrics import Metrics, resolve_metrics
from trainers.user_code.output_losses import (
    Loss,
    losses_of,
    sums_over_batches,
    total_and_count,
)
from trainers.user_code.probe import Probe
from trainers.user_code.unreduced import num_rows


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledObjective:
    """The objective that `fit` would have. Satisfies `Objective`.

    Attributes:
      losses: One of each output that has one.
      metrics: Reported metrics.
      classes: Classes of examples; None where the model is no classifier.
      compiled: The arguments of `compile` that it was made from.
      weighs_rows: True if examples have unequal weights in the mean of a loss.
      outputs: Tensors of the shapes of the model's outputs; None if unknown.
      fit_model: Model of a program, of which all is reported as in `fit`: the losses
        of outputs are means over batches, and its metrics keep their values. None
        without a program.
      evaluation_remark: Warning about variables that an evaluation assigns.
    """

    losses: Sequence[Loss]
    metrics: Metrics
    classes: ClassPredictionsFunction | None
    compiled: AsCompiled | None
    weighs_rows: bool = False
    outputs: Any = None
    fit_model: keras.Model | None = None
    evaluation_remark: str | None = None
    # Not a field: see `Objective`.
    has_layer_losses = False

    def values(self, model: Predict, batch: Any, training: bool) -> Values:
        """See `Objective`."""
        predictions = predictions_of(model, batch.features, training)
        return self.of_predictions(
            batch.labels, predictions, batch.global_size, batch.totals
        )

    def of_predictions(
        self,
        labels: Any,
        predictions: Any,
        global_size: Any = None,
        totals: Mapping[str, Any] | None = None,
    ) -> Values:
        """See `Objective`."""
        labels, weights = _separated(labels)
        by_name = {}
        for loss in self.losses:
            total = (totals or {}).get(loss.key)
            by_name[loss.key] = loss(labels, predictions, global_size, weights, total)
        total = tf.add_n(
            [
                value if loss.weight is None else loss.weight * value
                for loss, value in zip(self.losses, by_name.values(), strict=True)
            ]
        )
        reported: Values = by_name if len(self.losses) > 1 else {}
        if self.fit_model is not None:
            size = num_rows(predictions) if global_size is None else global_size
            reported = sums_over_batches(reported, size)
        metrics = self.metrics.values(labels, predictions, weights)
        return {"loss": total, **metrics, **reported}

    @property
    def totals(self) -> Totals | None:
        """See `Objective`."""
        return self.weights_of_rows if self.weighs_rows else None

    def weights_of_rows(self, model: Predict, batch: Any) -> Mapping[str, tf.Tensor]:
        """Returns the sum of the weights of rows in the mean of each loss, by name.

        Losses in which every example weighs alike are left out.
        """
        # Masks depend on the features alone: of the model's operations only those that
        # compute them remain in the graph.
        predictions = predictions_of(model, batch.features, training=False)
        labels, weights = _separated(batch.labels)
        counts = {
            loss.key: loss.weight_of_rows(labels, predictions, weights)
            for loss in self.losses
        }
        return {
            name: tf.reduce_sum(count * row_weights(batch, count))
            for name, count in counts.items()
            if count is not None
        }

    def results(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """See `Objective`."""
        found = self.metrics.results(sums)
        if self.fit_model is not None and len(self.losses) > 1:
            for loss in self.losses:
                total, count = total_and_count(sums, loss.key)
                # As in the logs of `fit`, the last one of a name is reported.
                found[f"{loss.name}_loss"] = float(total / count)
        return found

    def metric_state(
        self, sums: Mapping[str, Any]
    ) -> Sequence[tuple[keras.Variable, Any]]:
        """See `Objective`."""
        if self.fit_model is None:
            return []
        means = [(loss_tracker(self.fit_model), sums["loss"], sums["examples"])]
        for loss in self.losses:
            if (mean := loss.resolved.mean) is not None:
                means.append((mean, *total_and_count(sums, loss.key)))
        state = self.metrics.state(sums)
        for mean, total, count in means:
            state += [(mean.total, total), (mean.count, count)]
        return state


def objective_of(
    model: keras.Model,
    loss: str | None,
    metrics: Sequence[str] | None,
    examples: Probe,
    is_of_program: bool = False,
) -> CompiledObjective:
    """Returns what `fit` would minimize and report, for each example.

    Call it outside of a strategy's scope, because Keras makes variables of metrics.

    Args:
      model: A model, perhaps compiled.
      loss: Keras's name; None for the loss the model was compiled with.
      metrics: Keras's names; None for those the model was compiled with.
      examples: A few examples, whose labels may be `Weighted`.
      is_of_program: True for the model of a program that calls `fit`.

    Raises:
      UsageError: There is no loss, or one of them has no value for each example.
    """
    weights, reported, weighted = compiled_with(model)
    minimized = loss or getattr(model, "loss", None)
    if minimized is None:
        raise UsageError(
            "--loss is missing, and the model was not compiled with one: give Keras's "
            "name of it, such as --loss=sparse_categorical_crossentropy, or compile "
            "the model."
        )
    compiled = AsCompiled(
        loss=minimized,
        loss_weights=None if loss else weights,
        metrics=list(metrics) if metrics else reported,
        weighted_metrics=None if metrics else weighted,
    )
    names = getattr(model, "output_names", None)
    labels, sample_weights = _separated(examples.labels)
    examples = examples._replace(labels=labels)
    fit_model = model if is_of_program else None
    losses = losses_of(compiled, names, labels, examples.predictions, fit_model)
    objective = CompiledObjective(
        losses=losses,
        metrics=resolve_metrics(compiled, names, examples, sample_weights, fit_model),
        classes=classes_of(losses[0].resolved.loss) if len(losses) == 1 else None,
        compiled=compiled,
        fit_model=fit_model,
    )
    judges: list[Judge] = [*losses, *objective.metrics.means.values()]
    check_independence(judges, labels, examples.predictions)
    return objective


def _separated(labels: Any) -> tuple[Any, Any]:
    """Returns labels as `fit` hands them on, and sample weights or None."""
    labels, weights = separated(labels)
    if weights is None:
        return in_floatx(labels), None
    # In a list they would be [1, n] to Keras, which takes their mean over all values.
    alone, *others = tf.nest.flatten(weights)
    return in_floatx(labels), in_floatx(weights if others else alone)


def in_floatx(labels: Any) -> Any:
    """Returns labels as `fit` hands them on: floating ones in Keras's floatx."""

    def converted(label: Any) -> tf.Tensor:
        label = tf.convert_to_tensor(label)
        is_floating = label.dtype.is_floating
        return tf.cast(label, keras.config.floatx()) if is_floating else label

    return tf.nest.map_structure(converted, labels)
