"""Rows of replicas that layers with `synchronized=True` sum in the forward pass."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from strategies.common.private_apis.models import synchronized_moments_of
from strategies.common.types import Batch
from trainers.model.random_numbers.per_thread import PerThread


class SynchronizedRows:
    """Rows of each replica that such layers sum: none of an empty shard.

    An empty shard has a row to compute on (`strategies.inner_loop.sharding`). Its
    weight in the loss is zero, but a layer that sums over replicas would count it.

    A replica gets gradients of the losses of all replicas through such a sum. Where
    gradients are weighted after they are taken, each has to be weighted before the sum.
    """

    def __init__(self) -> None:
        self._present: PerThread[tuple[tf.Tensor, tf.Tensor | None]] = PerThread(
            lambda: synchronized_moments_of(self._counted, self._weighted)
        )

    def of(
        self, batch: Batch, weight: tf.Tensor | None = None
    ) -> AbstractContextManager[None]:
        """Returns a context in which layers sum the rows of a shard, in this thread.

        Args:
          batch: The shard.
          weight: Factor of the shard's gradients once they are taken; None for 1.
        """
        return self._present.having((batch.num_rows, weight))

    def _counted(self, values: tf.Tensor) -> tf.Tensor:
        own, weight = self._present.present() or (None, None)
        if own is None:
            return values
        # A layer may have merged axes, so that an example has several rows.
        rows = values[: tf.where(own > 0, tf.shape(values, tf.int64)[0], 0)]
        if weight is None or not rows.dtype.is_floating:
            return rows
        return _with_gradient_times(rows, tf.math.reciprocal_no_nan(weight))

    def _weighted(self, result: tf.Tensor) -> tf.Tensor:
        _, weight = self._present.present() or (None, None)
        return result if weight is None else _with_gradient_times(result, weight)


def _with_gradient_times(values: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns values whose gradient is multiplied by a factor."""

    @tf.custom_gradient
    def unchanged(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return upstream * tf.cast(factor, upstream.dtype)

        return tf.identity(values), gradient

    return unchanged(values)
