"""Sums of losses and metrics over the rows of a replica, with losses of layers."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from models.objective import Summed, Values
from strategies.common.types import Batch
from strategies.inner_loop.sharding import row_weights


def weighted_sums(values: Values, batch: Batch) -> dict[str, tf.Tensor]:
    """Sums values, [rows] each or already summed, over the rows that count.

    Returns:
      Sums by name: scalars, except for sums that were passed as such.
    """
    # One for each type, because a small step takes as long as it has operations.
    weights: dict[tf.DType, tf.Tensor] = {}

    def of_rows_that_count(value: tf.Tensor | Summed) -> tf.Tensor:
        if not isinstance(value, Summed):
            if value.dtype not in weights:
                weights[value.dtype] = row_weights(batch, value)
            # Zero also where the row of an empty shard has a value that is not finite.
            rows = tf.math.multiply_no_nan(value, weights[value.dtype])
            return tf.reduce_sum(rows)
        # Only the row of an empty shard does not count.
        total = value.total
        return tf.where(batch.num_rows > 0, total, tf.zeros_like(total))

    return {name: of_rows_that_count(value) for name, value in values.items()}


def reported(sums: dict[str, tf.Tensor], batch: Batch) -> dict[str, tf.Tensor]:
    """Returns sums and the number of examples, in float64 so that counts are exact."""
    reported = {name: tf.cast(value, tf.float64) for name, value in sums.items()}
    reported["examples"] = tf.cast(batch.num_rows, tf.float64)
    return reported


def with_layer_losses(
    loss: tf.Tensor,
    variables: Sequence[keras.Variable],
    scope: keras.StatelessScope,
    batch: Batch,
) -> tf.Tensor:
    """Returns a sum of losses of rows, with losses of layers and regularization.

    Layers have added theirs in the scope, and the variables are trainable. Both are
    means over a batch, so that each row counts with all of them; of several numbers
    Keras takes the sum. `Model.losses` would contain both, but inside a StatelessScope
    it passes None to the regularizer of every variable that the scope does not map
    (Keras 3.15, keras/src/layers/layer.py, `_get_regularization_losses`).
    """
    penalties = [v.regularizer(v) for v in variables if v.regularizer is not None]
    added = tf.zeros([], loss.dtype)
    for one in (*scope.losses, *penalties):
        added += tf.reduce_sum(tf.cast(one, loss.dtype))
    return loss + tf.cast(batch.num_rows, loss.dtype) * added
