"""Sparse gradients of embeddings: rows that a step used."""

from collections.abc import Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.embedding import ShardedEmbedding
from strategies.common.private_apis.models import flat_layers, is_of_keras
from strategies.common.types import Batch, ReplicaFunction
from strategies.inner_loop.updates_in_turn import UpdatesInTurn


def embeddings_of(model: keras.Model) -> list[ShardedEmbedding]:
    """Returns the layers that use only a few rows of their table in a step."""
    return [
        layer for layer in flat_layers(model) if isinstance(layer, ShardedEmbedding)
    ]


def sum_duplicates(gradient: Any) -> Any:
    """Returns a gradient without repeated rows; a dense one, or None, unchanged.

    Several replicas, or several lookups of one replica, may each contribute to a row.
    The sum of the contributions is the row's gradient. Nonlinear functions of it, such
    as norms and squares, are wrong when computed from the parts.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    # indices: [unique rows]; positions: [rows], the index of each row in `indices`.
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def tables_shared_by_examples(
    step: ReplicaFunction, model: keras.Model, one: Batch, two: Batch
) -> Collection[int]:
    """Returns which gradients have as many rows for two examples as for one.

    The rows of their tables do not depend on the example, as in a table of positions:
    the gradient of a whole batch has each row once, summed over the examples, and each
    replica has each row once. In all other tables, every example has its rows. The step
    of a replica is traced and not run.

    Returns:
      Places among the trainable variables.
    """
    if not any(_may_be_a_table(layer) for layer in flat_layers(model)):
        return ()
    weights = [v.value for v in model.trainable_variables]
    of_one = _numbers_of_rows(step, weights, one)
    if not any(of_one):
        # A trace takes up to seconds, and only tables have rows to compare.
        return ()
    of_two = _numbers_of_rows(step, weights, two)
    return [
        place
        for place, counts in enumerate(zip(of_one, of_two, strict=True))
        if counts[0] is not None and counts[0] == counts[1]
    ]


def _may_be_a_table(layer: keras.layers.Layer) -> bool:
    # A layer of the user's own may gather rows of a weight.
    return not is_of_keras(layer) or isinstance(layer, keras.layers.Embedding)


def _numbers_of_rows(
    step: ReplicaFunction, weights: Sequence[tf.Variable], batch: Batch
) -> list[int | None]:
    """Returns the number of rows of each sparse gradient; None for other gradients."""
    counts: list[int | None] = []

    def trace(batch: Batch) -> None:
        gradients = _gradients(step, weights, batch)
        counts.extend(
            g.indices.shape[0] if isinstance(g, tf.IndexedSlices) else None
            for g in gradients
        )

    tf.function(trace, autograph=False).get_concrete_function(batch)
    return counts


def _gradients(
    step: ReplicaFunction, weights: Sequence[tf.Variable], batch: Batch
) -> Sequence[Any]:
    """Returns the gradients of a replica, taken from its loss if it returns none."""
    if not isinstance(step, UpdatesInTurn):
        outputs = step(batch)
        if outputs.loss is not None:
            return tf.gradients(outputs.loss, weights)
        return outputs.gradients
    passes: list[Sequence[Any]] = []
    former: list[Sequence[tf.Tensor]] = []
    for index in range(step.num_passes):
        passes.append(step.compute(index, former)(batch).gradients)
        if index + 1 < step.num_passes:
            former.append([tf.identity(v) for v in step.changed(index)])
    return [
        next((one for one in of_variable if one is not None), None)
        for of_variable in zip(*passes, strict=True)
    ]


def as_dense(gradients: Sequence[Any]) -> list[Any]:
    """Converts gradients to the shapes of their variables; None stays None."""
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]
