"""Gradients of embeddings, which hold only the rows that a step used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from models.embedding import ShardedEmbedding
from strategies.common.private_apis import flat_layers


def embeddings_of(model: keras.Model) -> list[ShardedEmbedding]:
    """Layers of which a step uses only a few rows."""
    return [
        layer for layer in flat_layers(model) if isinstance(layer, ShardedEmbedding)
    ]


def sum_duplicates(gradient: Any) -> Any:
    """The same gradient with every row at most once; dense ones as they are.

    Several replicas, or several lookups of one, may each contribute to a row. Their
    sum is the row's gradient. What is not linear in it, such as norms and squares,
    is wrong when computed from the parts.

    Args:
      gradient: tensor, IndexedSlices or None.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def as_dense(gradients: Sequence[Any]) -> list[Any]:
    """The same gradients, each as large as its variable; None stays None."""
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]
