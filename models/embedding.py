"""An embedding table with rows in several variables."""

import math
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="models")
class ShardedEmbedding(keras.layers.Layer):
    """An embedding layer: from ids to rows of one table, kept in several variables.

    Row r is in shard r mod n. Vocabularies are usually sorted by frequency, so that
    contiguous blocks would give one parameter server most of the traffic.

    One gather reads each shard directly from its variable: only the requested rows
    leave the server, and the gradient of each shard is IndexedSlices.
    (`keras.layers.Embedding` converts its variable to a tensor first, which reads the
    whole table.) A row that several examples share is read and sent once.
    """

    def __init__(self, num_rows: int, dimension: int, num_shards: int, **settings: Any):
        """Stores the sizes; variables are created by `build`.

        Args:
          num_rows: Number of rows of the table; ids are from 0 to num_rows - 1.
          dimension: Number of values in a row.
          num_shards: Number of variables that hold the rows.
          **settings: Settings of any Keras layer, such as its name.
        """
        super().__init__(**settings)
        self.num_rows = num_rows
        self.dimension = dimension
        self._num_shards = num_shards
        self._ids_per_example = 0
        self.shards: list[keras.Variable] = []

    def build(self, input_shape: Any) -> None:
        """Draws the whole table, so that the number of shards changes no weight."""
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
                    # `rows=rows` binds this shard's rows, and not the last shard's.
                    initializer=lambda shape, dtype, rows=rows: tf.cast(rows, dtype),
                    # In mixed precision, autocast would convert all rows to look up a
                    # few.
                    autocast=False,
                )
            )

    def most_gradient_bytes(self, num_examples: int) -> int:
        """Returns the maximum bytes of the gradient of a number of examples.

        It is reached if no two examples share a category. Each row has its int64 index.
        """
        rows = min(num_examples * self._ids_per_example, self.num_rows)
        row_bytes = self.dimension * tf.as_dtype(self.variable_dtype).size
        return rows * (row_bytes + tf.int64.size)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up rows [..., dimension] of ids [...]."""
        # A frequent category is read once per step, not once per example.
        unique_ids, positions = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.gather(self._look_up(unique_ids), positions)
        shape = tf.concat([tf.shape(ids), [self.dimension]], axis=0)
        rows = tf.ensure_shape(tf.reshape(rows, shape), [*ids.shape, self.dimension])
        return tf.cast(rows, self.compute_dtype)

    def _look_up(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up rows [n, dimension] of ids [n] in all shards."""
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
        # Restores the order of `ids`.
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
