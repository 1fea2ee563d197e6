"""Embeddings of categorical columns, and a small dense network.

The model needs much memory and little computation.
"""

import keras
import numpy as np

from models.base import Examples, Settings
from models.classification import classifier
from models.embedding import ShardedEmbedding
from models.mlp import hidden_layers

# Limit for the values of the table: 8 GiB in float32.
_MOST_NUMBERS = 2**31


def build(data: Examples, settings: Settings) -> keras.Model:
    """Builds an embedding of every column, dense layers with ReLU, then logits.

    All columns share one table, so that a step has one lookup instead of one per
    column: category k of column c is row c num_categories + k.
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
    # Shape [n, num_columns]: each column has its range of rows.
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
            f"--set=model.embedding_dimension={dimension} of {num_rows:,} rows are "
            f"{num_rows * dimension:,} numbers, more than the accepted "
            f"{_MOST_NUMBERS:,}: lower it, "
            "--set=data.num_columns or --set=data.num_categories."
        )
    if num_rows < settings.embedding_shards:
        raise ValueError(
            f"--set=model.embedding_shards={settings.embedding_shards} is more than "
            f"the {num_rows:,} rows of the table: lower it."
        )


SETTINGS = ("hidden_units", "dropout", "embedding_dimension", "embedding_shards")
SPEC = classifier(build)
