"""Categorical columns as embeddings, then a small tower: much memory, little work."""

from __future__ import annotations

import keras
import numpy as np

from models.base import Examples, Settings, classifier
from models.embedding import ShardedEmbedding
from models.mlp import hidden_layers

# 8 GiB in single precision.
_MOST_NUMBERS = 2**31


def build(data: Examples, settings: Settings) -> keras.Model:
    """Looks up every column's category, then dense layers with ReLU, then logits.

    All columns share one table, so that a step has one lookup and not one for each
    column: category k of column c is row c num_categories + k.

    Raises:
      ValueError: the features are not ids in columns, or there are too many of them.
    """
    if data.num_categories is None or len(data.input_shape) != 1:
        raise ValueError(
            "--model=wide_embedding takes ids of categories; the data set's features "
            f"are quantities of shape {data.input_shape}: use --dataset=clicks, or "
            "--model=mlp."
        )
    (num_columns,) = data.input_shape
    num_rows = num_columns * data.num_categories
    _check_size(num_rows, settings)
    ids = keras.Input(data.input_shape, dtype="int64", name="ids")
    rows = keras.ops.add(ids, np.arange(num_columns) * data.num_categories)
    embedded = ShardedEmbedding(
        num_rows,
        settings.embedding_dimension,
        settings.embedding_shards,
        name="embedding",
    )(rows)
    hidden = hidden_layers(keras.layers.Flatten(name="flatten")(embedded), settings)
    logits = keras.layers.Dense(data.num_classes, name="logits")(hidden)
    return keras.Model(ids, logits, name="wide_embedding")


def _check_size(num_rows: int, settings: Settings) -> None:
    dimension = settings.embedding_dimension
    if num_rows * dimension > _MOST_NUMBERS:
        raise ValueError(
            f"--embedding_dimension={dimension} of {num_rows:,} rows are "
            f"{num_rows * dimension:,} numbers, more than the accepted "
            f"{_MOST_NUMBERS:,}: lower it, --num_columns or --num_categories."
        )
    if num_rows < settings.embedding_shards:
        raise ValueError(
            f"--embedding_shards={settings.embedding_shards} is more than the "
            f"{num_rows:,} rows of the table: lower it."
        )


SPEC = classifier(build)
