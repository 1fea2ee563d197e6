"""A table of embeddings whose rows are spread over several variables."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="models")
class ShardedEmbedding(keras.layers.Layer):
    """From ids to rows of one table, which is kept in several variables.

    Row r is in shard r mod n. Vocabularies are usually sorted by frequency, so that
    contiguous blocks would give one parameter server most of the traffic.

    Each shard is read by one gather, straight from its variable: only the rows that
    were asked for leave the server, and the gradient of each shard is IndexedSlices.
    (`keras.layers.Embedding` turns its variable into a tensor first, which reads the
    whole table.) A row that several examples share is read and sent once.
    """

    def __init__(self, num_rows: int, dimension: int, num_shards: int, **settings: Any):
        """Makes nothing yet.

        Args:
          num_rows: of the table; ids are from 0 to num_rows - 1.
          dimension: numbers in a row.
          num_shards: over how many variables the rows are spread.
          **settings: of any Keras layer, such as its name.
        """
        super().__init__(**settings)
        self.num_rows = num_rows
        self.dimension = dimension
        self._num_shards = num_shards
        self._ids_per_example = 0
        self.shards: list[keras.Variable] = []

    def build(self, input_shape: Any) -> None:
        """Draws the table as a whole: how it is spread must not change the weights."""
        self._ids_per_example = math.prod(input_shape[1:])
        table = keras.initializers.RandomUniform(-0.05, 0.05)(
            (self.num_rows, self.dimension), dtype=self.variable_dtype
        )
        for index in range(self._num_shards):
            rows = table[index :: self._num_shards]
            self.shards.append(
                self.add_weight(
                    name=f"shard_{index}",
                    shape=tuple(rows.shape),
                    initializer=lambda shape, dtype, rows=rows: tf.cast(rows, dtype),
                    # Computing in bfloat16 would convert all rows to look up a few.
                    autocast=False,
                )
            )

    def most_gradient_bytes(self, num_examples: int) -> int:
        """Size of the gradient of some examples, none of which share a category."""
        rows = min(num_examples * self._ids_per_example, self.num_rows)
        row_bytes = self.dimension * tf.as_dtype(self.variable_dtype).size
        return rows * (row_bytes + tf.int64.size)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows [..., dimension] of ids [...]."""
        unique_ids, positions = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.gather(self._look_up(unique_ids), positions)
        shape = tf.concat([tf.shape(ids), [self.dimension]], axis=0)
        rows = tf.ensure_shape(tf.reshape(rows, shape), [*ids.shape, self.dimension])
        return tf.cast(rows, self.compute_dtype)

    def _look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows [n, dimension] of ids [n], from all shards."""
        shard_of = tf.cast(ids % self._num_shards, tf.int32)
        parts = tf.dynamic_partition(
            ids // self._num_shards, shard_of, self._num_shards
        )
        places = tf.dynamic_partition(
            tf.range(tf.size(ids)), shard_of, self._num_shards
        )
        rows = [
            tf.gather(shard.value, part)
            for shard, part in zip(self.shards, parts, strict=True)
        ]
        return tf.dynamic_stitch(places, rows)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_rows": self.num_rows,
            "dimension": self.dimension,
            "num_shards": self._num_shards,
        }

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape, self.dimension)
