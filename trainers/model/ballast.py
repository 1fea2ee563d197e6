"""Ballast: weights without function that enlarge the gradient.

The cost of a byte can only be measured with a second gradient size. A wider model would
provide one, but it computes more, and a model of the user has no width to change. The
ballast can be trained with any model: the strategy sums, sends and applies its
gradients like all other gradients.
"""

import keras
import tensorflow as tf

from strategies.common.private_apis.models import takes_weights
from strategies.inner_loop.reduction import bytes_of
from trainers.model.sparse_gradients import embeddings_of

# Bounds of the ballast. It matches the size of the model's own gradients within them.
# The effect of less would disappear in the noise between runs; more may not fit into
# memory.
LEAST_BYTES = 1 << 20
MOST_BYTES = 256 << 20

# Too small to change a loss, and large enough that neither the gradient nor its square,
# which an optimizer computes, is a denormal number, which CPUs process slowly.
_GRADIENT = 1e-6


def add_ballast(model: keras.Model, num_weights: int) -> None:
    """Adds equal weights with the bytes of the model's gradients, within the bounds."""
    by_row = {id(shard) for layer in embeddings_of(model) for shard in layer.shards}
    # Embeddings send only the rows in use, so their tables do not count.
    dense = [v.value for v in model.trainable_variables if id(v) not in by_row]
    size = min(max(bytes_of(dense), LEAST_BYTES), MOST_BYTES)
    dtype = keras.config.floatx()
    length = size // (num_weights * tf.as_dtype(dtype).size)
    # A subclassed Keras model refuses further weights once it is built.
    with takes_weights(model):
        for index in range(num_weights):
            model.add_weight(
                shape=(length,),
                initializer="zeros",
                dtype=dtype,
                regularizer=_penalty,
                name=f"ballast_{index}",
            )


def gradients_of_ballast(model: keras.Model, share: tf.Tensor) -> dict[int, tf.Tensor]:
    """Returns gradients of ballast by the weights' ids, for steps without its penalty.

    `share` is the fraction of the global batch that a replica computes, a scalar.
    """
    return {
        id(weight): tf.fill(weight.shape, _GRADIENT * tf.cast(share, weight.dtype))
        for weight in model.trainable_variables
        if weight.regularizer is _penalty
    }


def _penalty(weight: keras.Variable) -> tf.Tensor:
    """Returns a loss that depends on the weight and therefore has a gradient.

    TensorFlow might send a constant only once.
    """
    return _GRADIENT * keras.ops.sum(weight)
