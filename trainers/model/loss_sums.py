"""Sums of losses and metrics over the rows of a replica, with losses of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from models.objective import Objective, Summed, Values
from strategies.common.types import Batch
from strategies.inner_loop.sharding import row_weights


def weighted_sums(values: Values, batch: Batch) -> dict[str, tf.Tensor]:
    """Sums values over the rows that count.

    Args:
      values: Loss and metrics by name, each [rows] or already summed.
      batch: Batch that marks the rows that count.

    Returns:
      Sums by name: scalars, except for sums that were passed as such.
    """

    def of_rows_that_count(value: tf.Tensor | Summed) -> tf.Tensor:
        if not isinstance(value, Summed):
            # Zero also where the row of an empty shard has a value that is not finite.
            rows = tf.math.multiply_no_nan(value, row_weights(batch, value))
            return tf.reduce_sum(rows)
        # Only the row of an empty shard does not count.
        total = value.total
        return tf.where(batch.num_rows > 0, total, tf.zeros_like(total))

    return {name: of_rows_that_count(value) for name, value in values.items()}


def reported(sums: dict[str, tf.Tensor], batch: Batch) -> dict[str, tf.Tensor]:
    """Returns sums and the number of examples, in float64 so that counts are exact.

    Args:
      sums: Numerators of means over examples, by name.
      batch: Batch of the sums.
    """
    reported = {name: tf.cast(value, tf.float64) for name, value in sums.items()}
    reported["examples"] = tf.cast(batch.num_rows, tf.float64)
    return reported


def added_losses(
    objective: Objective,
    variables: Sequence[keras.Variable],
    scope: keras.StatelessScope,
) -> list[tf.Tensor]:
    """Returns the losses to add to that of an objective.

    Args:
      objective: Objective, which may have them in its loss already.
      variables: Trainable variables.
      scope: Scope in which the layers ran.
    """
    if objective.has_layer_losses:
        return []
    return layer_losses(variables, scope)


def regularized(
    model: Any, objective: Objective, mapped: Sequence[tuple[keras.Variable, Any]]
) -> list[tuple[keras.Variable, Any]]:
    """Returns regularized variables with their own values, for a StatelessScope.

    `Model.losses`, which an objective's loss may have in it, asks the scope for the
    value of each (keras/src/layers/layer.py, `_get_regularization_losses`).

    Args:
      model: Model of the objective.
      objective: Objective of the step.
      mapped: Values that the scope has anyway.
    """
    if not objective.has_layer_losses:
        return []
    known = {id(variable) for variable, _ in mapped}
    return [pair for pair in regularized_weights(model) if id(pair[0]) not in known]


def regularized_weights(model: Any) -> list[tuple[keras.Variable, Any]]:
    """Returns each regularized variable of a model with its own value."""
    return [
        (variable, variable.value)
        for variable in model.trainable_variables
        if variable.regularizer is not None
    ]


def layer_losses(
    variables: Sequence[keras.Variable], scope: keras.StatelessScope
) -> list[tf.Tensor]:
    """Returns the losses that layers added in this call, and weight regularization.

    `Model.losses` would contain both, but inside a StatelessScope it passes None to the
    regularizer of every variable that the scope does not map (Keras 3.15,
    keras/src/layers/layer.py, `_get_regularization_losses`).

    Args:
      variables: Trainable variables.
      scope: Scope in which the layers ran.
    """
    return [*scope.losses, *regularization_losses(variables)]


def scale_by_examples(
    added: Sequence[tf.Tensor], batch: Batch, dtype: Any
) -> tf.Tensor:
    """Returns the sum over rows that corresponds to losses that are means over a batch.

    Args:
      added: Scalar losses, each a mean over a batch.
      batch: Batch with the number of rows that count.
      dtype: Type of the result.
    """
    total = tf.zeros([], dtype)
    for loss in added:
        total += tf.cast(loss, dtype)
    return tf.cast(batch.num_rows, dtype) * total


def regularization_losses(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns the regularization loss of each variable that has a regularizer."""
    return [
        variable.regularizer(variable)
        for variable in variables
        if variable.regularizer is not None
    ]
