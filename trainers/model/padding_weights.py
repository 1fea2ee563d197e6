"""Weights that compute nothing, so that replicas have more bytes to send.

What a byte costs shows only in a second size of gradient. A wider model would have one,
but computes more, and a model of a user's own has no width to change. These weights are
trained with any model: their gradients are summed, sent and applied as all others are,
by whatever the strategy does with them.
"""

from __future__ import annotations

import dataclasses

import keras
import tensorflow as tf

from models.base import Build, Examples, Objective, Settings, TrainableModel
from strategies.common.private_apis import takes_weights
from strategies.inner_loop.reduction import bytes_of
from trainers.model.sparse_gradients import embeddings_of

# What the model has is what its bytes are to be told by. Less than this is lost in what
# one run differs from the next, and more may not fit in beside what fitted before.
LEAST_BYTES = 1 << 20
MOST_BYTES = 256 << 20

# Far from what changes a loss, and from numbers so small that CPUs are slow at them,
# the squares included that an optimizer takes.
_GRADIENT = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WithBallast:
    """A model with ballast. Satisfies `TrainableModel`.

    Attributes:
      spec: of the model.
      num_weights: over which the ballast is spread: one for each place that has a part
        of the weights, so that none has it all.
    """

    spec: TrainableModel
    num_weights: int

    @property
    def build(self) -> Build:
        """See `TrainableModel`."""

        def build(data: Examples, settings: Settings) -> keras.Model:
            model = self.spec.build(data, settings)
            add_ballast(model, self.num_weights)
            return model

        return build

    def objective(self, model: keras.Model, label_smoothing: float) -> Objective:
        """See `TrainableModel`."""
        return self.spec.objective(model, label_smoothing)


def add_ballast(model: keras.Model, num_weights: int) -> None:
    """As many bytes again as the model's gradients have, within the limits above.

    Args:
      model: with all its variables.
      num_weights: of equal size, over which they are spread.
    """
    by_row = {id(shard) for layer in embeddings_of(model) for shard in layer.shards}
    dense = [v.value for v in model.trainable_variables if id(v) not in by_row]
    size = min(max(bytes_of(dense), LEAST_BYTES), MOST_BYTES)
    dtype = keras.config.floatx()
    length = size // (num_weights * tf.as_dtype(dtype).size)
    with takes_weights(model):
        for index in range(num_weights):
            model.add_weight(
                shape=(length,),
                initializer="zeros",
                dtype=dtype,
                regularizer=_penalty,
                name=f"ballast_{index}",
            )


def _penalty(weight: keras.Variable) -> tf.Tensor:
    """A loss that has a gradient; a constant one might be sent once and for all."""
    return _GRADIENT * keras.ops.sum(weight)
