"""Random numbers of Keras that do not depend on which replica draws them.

A hash of the layer's seed, the example's index in the data set and the number's
position in the example's row takes the place of TensorFlow's generators, which draw for
all rows of a batch at once. A few elementwise operations compute the hashes of all
rows. They support uint64 on CPUs, on GPUs and in XLA, with equal results.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies.common import hashing
from strategies.common.private_apis.random_numbers import random_functions_replaced
from trainers.model.random_numbers.per_thread import PerThread

# In the middle between two numbers of 53 bits, so that no number is zero.
_HALF_A_STEP = 2.0**-54
# Bits of uniform numbers in types with fewer than 53, as many as TensorFlow draws.
_BITS = {tf.float32: 23, tf.float16: 10, tf.bfloat16: 7}
# Keras's truncated_normal keeps numbers within two standard deviations.
_TRUNCATED_AT = 2.0


class ReplayedRandomNumbers:
    """Replacement of Keras's random functions in the steps of a model.

    Attributes:
      are_of_examples: False once numbers were drawn for rows that are not the examples,
        such as two rows for each.
    """

    def __init__(self) -> None:
        self.are_of_examples = True
        self._examples: PerThread[tf.Tensor | tf.Variable] = PerThread(
            lambda: random_functions_replaced(self.draw)
        )

    def replayed(
        self, examples: tf.Tensor | tf.Variable
    ) -> contextlib.AbstractContextManager[None]:
        """Draws the numbers of some examples in the block, in this thread.

        A layer that is called several times has another seed each time.

        Args:
          examples: Indices in the data set of the rows of a replica, int64 [rows].
        """
        return self._examples.having(examples)

    def draw(self, name: str, seed: tf.Tensor) -> Callable[..., tf.Tensor] | None:
        """Returns a function to call in place of one of Keras's; None to call that.

        Args:
          name: Name of Keras's function.
          seed: Seed of this call, whole numbers [2].
        """
        examples = self._examples.present()
        if examples is None:
            return None
        key = hashing.key_of(*(tf.cast(word, tf.int64) for word in tf.unstack(seed)))
        draw = _Draw(key, tf.convert_to_tensor(examples), self._note_rows)
        return getattr(draw, name, None)

    def _note_rows(self, size: Any, num_examples: int | None) -> None:
        if tf.get_static_value(tf.convert_to_tensor(size)) != num_examples:
            self.are_of_examples = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Draw:
    """One call; its public methods have the names of Keras's, and no seed.

    Attributes:
      key: Key of the call, uint64.
      examples: Indices of a replica's examples, int64 [rows].
      note_rows: Function that takes the number of rows of the numbers and that of the
        examples, None if it is not known.
    """

    key: tf.Tensor
    examples: tf.Tensor
    note_rows: Callable[[Any, int | None], None]

    def uniform(
        self, shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None
    ) -> tf.Tensor:
        """Returns numbers from minval up to, but not including, maxval."""
        kind = tf.as_dtype(dtype or keras.config.floatx())
        numbers = self._uniform(shape)
        if kind in _BITS:
            # The cast to a shorter type would round the largest ones to 1.
            numbers = tf.floor(numbers * 2.0 ** _BITS[kind]) / 2.0 ** _BITS[kind]
        numbers = tf.cast(numbers, kind)
        low, high = (tf.cast(limit, numbers.dtype) for limit in (minval, maxval))
        return low + numbers * (high - low)

    def normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
    ) -> tf.Tensor:
        """Returns normally distributed numbers."""
        numbers = tf.math.ndtri(self._uniform(shape) + _HALF_A_STEP)
        return _moved(numbers, mean, stddev, dtype)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
    ) -> tf.Tensor:
        """Returns normally distributed numbers that are not far from the mean."""
        low = 0.5 * tf.math.erfc(tf.constant(_TRUNCATED_AT / 2**0.5, tf.float64))
        numbers = tf.math.ndtri(low + self._uniform(shape) * (1 - 2 * low))
        return _moved(numbers, mean, stddev, dtype)

    def randint(
        self, shape: Any, minval: Any, maxval: Any, dtype: Any = "int32"
    ) -> tf.Tensor:
        """Returns whole numbers from minval up to, but not including, maxval."""
        low, high = (tf.cast(limit, tf.float64) for limit in (minval, maxval))
        return tf.cast(low + tf.floor(self._uniform(shape) * (high - low)), dtype)

    def categorical(
        self, logits: Any, num_samples: int, dtype: Any = "int64"
    ) -> tf.Tensor:
        """Returns classes [rows, num_samples], by the Gumbel-max trick."""
        sizes = tf.unstack(tf.shape(logits))
        uniform = self._uniform([sizes[0], num_samples, *sizes[1:]]) + _HALF_A_STEP
        gumbel = -tf.math.log(-tf.math.log(uniform))
        scores = tf.cast(logits, tf.float64)[:, tf.newaxis] + gumbel
        return tf.argmax(scores, axis=-1, output_type=tf.as_dtype(dtype))

    def dropout(self, inputs: Any, rate: float, noise_shape: Any = None) -> tf.Tensor:
        """Drops a fraction of the numbers, and scales the others."""
        # 1 / (1 - rate) would divide by zero.
        if rate == 1.0:
            return tf.zeros_like(inputs)
        sizes = tf.unstack(tf.shape(inputs))
        shape = [
            size if fixed is None else fixed
            for size, fixed in zip(
                sizes, noise_shape or [None] * len(sizes), strict=True
            )
        ]
        kept = self._uniform(shape) >= rate
        # tf.cast would round the factor to float32 first.
        scaled = inputs * tf.constant(1 / (1 - rate), inputs.dtype)
        return tf.where(kept, scaled, tf.zeros([], inputs.dtype))

    def _uniform(self, shape: Any) -> tf.Tensor:
        """Returns numbers in [0, 1), float64."""
        if isinstance(shape, tf.Tensor):
            shape = tf.unstack(shape)
        # Sizes are numbers or tensors, as layers compute them.
        sizes = [tf.cast(size, tf.int64) for size in shape]
        if not sizes:
            return hashing.uniform_of_rows(self.key, tf.zeros([1], tf.int64), 1)[0, 0]
        count = tf.reduce_prod(tf.stack([tf.ones([], tf.int64), *sizes[1:]]))
        rows = self._rows(shape[0])
        return tf.reshape(hashing.uniform_of_rows(self.key, rows, count), sizes)

    def _rows(self, size: Any) -> tf.Tensor:
        """Returns a number for each row: that of its example, if it has one.

        Rows that are not the replica's examples, such as a number for a whole batch,
        are numbered from 0 on every replica.

        Args:
          size: Number of rows, a number if the model fixes it.
        """
        self.note_rows(size, self.examples.shape[0])
        positions = tf.range(tf.cast(size, tf.int64))
        num_examples = tf.size(self.examples, tf.int64)
        if isinstance(size, int) and size != self.examples.shape[0]:
            # In Keras's own fit the number of examples is not known when a step is
            # traced.
            are_all = (self.examples.shape[0] is None) & (num_examples == size)
            places = tf.minimum(positions, num_examples - 1)
            return tf.where(are_all, tf.gather(self.examples, places), positions)
        # Other axes may be folded into the first: several rows belong to an example.
        folded = tf.maximum(tf.cast(size, tf.int64) // num_examples, 1)
        is_whole = (positions[-1:] + 1) % (folded * num_examples) == 0
        are_some = tf.cast(size, tf.int64) <= num_examples
        places = tf.minimum(positions // folded, num_examples - 1)
        of_examples = tf.gather(self.examples, places) * folded + positions % folded
        return tf.where(is_whole | are_some, of_examples, positions)


def _moved(numbers: tf.Tensor, mean: Any, stddev: Any, dtype: Any) -> tf.Tensor:
    numbers = tf.cast(numbers, dtype or keras.config.floatx())
    return numbers * tf.cast(stddev, numbers.dtype) + tf.cast(mean, numbers.dtype)
