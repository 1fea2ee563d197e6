"""Sparse gradients of embeddings: rows that a step used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from models.embedding import ShardedEmbedding
from strategies.common.private_apis.models import flat_layers


def embeddings_of(model: keras.Model) -> list[ShardedEmbedding]:
    """Returns the layers that use only a few rows of their table in a step."""
    return [
        layer for layer in flat_layers(model) if isinstance(layer, ShardedEmbedding)
    ]


def sum_duplicates(gradient: Any) -> Any:
    """Returns a gradient without repeated rows; a dense gradient unchanged.

    Several replicas, or several lookups of one replica, may each contribute to a row.
    The sum of the contributions is the row's gradient. Nonlinear functions of it, such
    as norms and squares, are wrong when computed from the parts.

    Args:
      gradient: Tensor, IndexedSlices or None.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    # indices: [unique rows]; positions: [rows], the index of each row in `indices`.
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def as_dense(gradients: Sequence[Any]) -> list[Any]:
    """Converts gradients to the shapes of their variables; None stays None."""
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]
