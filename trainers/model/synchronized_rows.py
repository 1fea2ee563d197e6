"""Rows of replicas that layers with `synchronized=True` sum in the forward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager

import tensorflow as tf

from strategies.common.private_apis.models import synchronized_moments_of
from strategies.common.types import Batch
from trainers.model.random_numbers.per_thread import PerThread


class SynchronizedRows:
    """Rows of each replica that such layers sum: none of an empty shard.

    An empty shard has a row to compute on (`strategies.inner_loop.sharding`). Its
    weight in the loss is zero, but a layer that sums over replicas would count it.
    """

    def __init__(self) -> None:
        self._num_rows: PerThread[tf.Tensor] = PerThread(
            lambda: synchronized_moments_of(self._counted)
        )

    def of(self, batch: Batch) -> AbstractContextManager[None]:
        """Returns a context in which layers sum the rows of a shard, in this thread."""
        return self._num_rows.having(batch.num_rows)

    def _counted(self, values: tf.Tensor) -> tf.Tensor:
        own = self._num_rows.present()
        if own is None:
            return values
        # A layer may have merged axes, so that an example has several rows.
        return values[: tf.where(own > 0, tf.shape(values, tf.int64)[0], 0)]
