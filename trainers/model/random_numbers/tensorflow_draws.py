"""Random numbers of TensorFlow's own operations in the step of a model.

The operation of `tf.random.normal` keeps a counter in its process. Workers that trace
the same graph would draw the same numbers for different examples. A resumed run would
draw other numbers than a run without interruption, and so would each pass of a step
with several updates. `tf.nn.dropout` and `tf.random.shuffle` use such operations too,
and a `tf.random.Generator` keeps its counter in a variable. In a step they are replaced
by their stateless counterparts. So are seeds of Keras that are the state of no layer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from strategies.common.private_apis.graphs import python_of
from strategies.common.private_apis.random_numbers import (
    SEED,
    stateful_draws_replaced,
)
from strategies.common.private_apis.replaced import replaced_in
from trainers.model.random_numbers.per_thread import PerThread
from trainers.model.random_numbers.replayed import ReplayedRandomNumbers


class TensorFlowDraws:
    """Replacement of stateful random operations in the steps of a model."""

    def __init__(self, replayed: ReplayedRandomNumbers | None = None):
        """Replaces nothing yet.

        Args:
          replayed: Random numbers of examples; None for numbers of replicas.
        """
        self._replayed = replayed
        self._steps: PerThread[Step] = PerThread(
            lambda: stateful_draws_replaced(self._instead)
        )

    @contextlib.contextmanager
    def keyed(
        self, key: tf.Tensor | tf.Variable, num_before: int = 0
    ) -> Iterator[Step]:
        """Draws the numbers of a key in the block, in this thread.

        Args:
          key: Key of the step, int64 [2].
          num_before: Number of draws of the step before the block.

        Yields:
          The step, whose number of draws grows.
        """
        graph = tf.compat.v1.get_default_graph()
        step = Step(tf.convert_to_tensor(key), graph, num_before)
        with self._steps.having(step):
            yield step

    def keyed_in_steps(
        self, model: keras.Model, key: tf.Variable
    ) -> AbstractContextManager[None]:
        """Draws the numbers of each step that `fit` traces in the block, by its key."""
        train_step = python_of(model.train_step)

        def with_key(data: Any) -> Any:
            with self.keyed(key):
                return train_step(data)

        return replaced_in(model, "train_step", with_key)

    def _instead(self, name: str) -> Callable[..., tf.Tensor] | None:
        """Returns a function to call in place of an operation; None to call that."""
        step = self._steps.present()
        # In the graph of a loop's body or of another function, each turn would have the
        # same key.
        if step is None or step.graph is not tf.compat.v1.get_default_graph():
            return None
        step.num_draws += 1
        # Counters of layers fold in numbers from 0: see `keyed_states`.
        seed = tf.random.fold_in(step.key, tf.constant(-step.num_draws, tf.int64))
        return lambda **given: self._draw(name, seed, given)

    def _draw(self, name: str, seed: tf.Tensor, given: Mapping[str, Any]) -> tf.Tensor:
        if self._replayed is not None and name in _REPLAYED:
            draw = self._replayed.draw(_REPLAYED[name], seed)
            if draw is not None:
                return draw(**_as_keras_names_them(given))
        return _STATELESS[name](seed, **given)


@dataclasses.dataclass(slots=True)
class Step:
    """The step under way in a thread.

    Attributes:
      key: Key of the step, int64 [2].
      graph: Graph that the step is traced into.
      num_draws: Number of operations that have drawn so far.
    """

    key: tf.Tensor
    graph: Any
    num_draws: int


# Functions of Keras with the same distribution.
_REPLAYED = {
    "random_standard_normal": "normal",
    "random_uniform": "uniform",
    "random_uniform_int": "randint",
    "truncated_normal": "truncated_normal",
    "multinomial": "categorical",
}


def _as_keras_names_them(given: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(given)
    if "output_dtype" in named:
        named["dtype"] = named.pop("output_dtype")
    if "minval" in named:
        named["dtype"] = tf.convert_to_tensor(named["minval"]).dtype
    if "shape" in named:
        static = tf.get_static_value(named["shape"])
        if static is not None:
            # A number that the model fixes is not the number of examples.
            named["shape"] = [int(size) for size in static]
    return named


def _shuffled(seed: tf.Tensor, value: Any) -> tf.Tensor:
    keys = tf.random.stateless_uniform(
        tf.shape(value)[:1], seed, minval=None, maxval=None, dtype=tf.int64
    )
    # Of a million keys of 64 bits two are equal once in 37 million shuffles.
    return tf.gather(value, tf.argsort(keys))


def _state_of_generator(
    seed: tf.Tensor, resource: Any, alg: Any, delta: Any
) -> tf.Tensor:
    """Returns the state of a `tf.random.Generator` for one call: counter and key."""
    del resource, alg, delta
    # The state of Philox, which all generators on CPUs and GPUs use.
    return tf.concat([tf.zeros([1], tf.int64), seed], axis=0)


def _per_element(shape: Any, parameter: Any) -> tf.Tensor:
    """Returns the shape of numbers for each element of a parameter."""
    return tf.concat([shape, tf.shape(parameter)], axis=0)


# Keyed by the operation's name in gen_random_ops.py and gen_stateful_random_ops.py of
# tensorflow/python/ops.
_STATELESS: Mapping[str, Callable[..., tf.Tensor]] = {
    SEED: lambda seed: seed,
    "random_standard_normal": lambda seed, shape, dtype: tf.random.stateless_normal(
        shape, seed, dtype=dtype
    ),
    "random_uniform": lambda seed, shape, dtype: tf.random.stateless_uniform(
        shape, seed, dtype=dtype
    ),
    "random_uniform_int": (
        lambda seed, shape, minval, maxval: tf.random.stateless_uniform(
            shape, seed, minval, maxval, tf.convert_to_tensor(minval).dtype
        )
    ),
    "truncated_normal": lambda seed, shape, dtype: tf.random.stateless_truncated_normal(
        shape, seed, dtype=dtype
    ),
    "random_shuffle": _shuffled,
    "rng_read_and_skip": _state_of_generator,
    "multinomial": lambda seed, logits, num_samples, output_dtype=tf.int64: (
        tf.random.stateless_categorical(logits, num_samples, seed, output_dtype)
    ),
    "random_gamma": lambda seed, shape, alpha: tf.random.stateless_gamma(
        _per_element(shape, alpha),
        seed,
        alpha,
        dtype=tf.convert_to_tensor(alpha).dtype,
    ),
    "random_poisson_v2": lambda seed, shape, rate, dtype=tf.int64: (
        tf.random.stateless_poisson(_per_element(shape, rate), seed, rate, dtype)
    ),
}
