"""Private names of random numbers in Keras and TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import random
from keras.src.random.seed_generator import draw_seed
from tensorflow.python.ops import gen_random_ops, gen_stateful_random_ops

from strategies.common.private_apis.replaced import replaced

_RANDOM_FUNCTIONS = (
    *("uniform", "normal", "truncated_normal", "randint", "categorical", "dropout"),
)


@contextlib.contextmanager
def random_functions_replaced(
    instead: Callable[[str, tf.Tensor], Callable[..., Any] | None],
) -> Iterator[None]:
    """Replaces what draws random numbers in Keras, in the block.

    Layers and `keras.random` draw by the functions of one module (keras/src/backend/
    tensorflow/random.py), with a seed or with a `SeedGenerator`, whose state they
    advance (keras/src/random/seed_generator.py, `draw_seed`).

    Args:
      instead: Function from the name of a function and the seed of a call to another
        function without the argument `seed`; None to call Keras's.
    """

    def replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        names = inspect.signature(original)

        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            given = names.bind(*args, **kwargs).arguments
            seed = draw_seed(given.pop("seed", None))
            other = instead(name, seed)
            return original(**given, seed=seed) if other is None else other(**given)

        return draw

    with replaced(random, _RANDOM_FUNCTIONS, replacement):
        yield


# Operations that keep a counter, with an argument `seed` and one `seed2`.
_STATEFUL_OPERATIONS = (
    *("random_standard_normal", "random_uniform", "random_uniform_int"),
    *("truncated_normal", "random_shuffle", "multinomial"),
    *("random_gamma", "random_poisson_v2"),
)
# All that a `tf.random.Generator` draws begins with the state that it returns.
_GENERATOR_OPERATIONS = ("rng_read_and_skip",)


@contextlib.contextmanager
def stateful_draws_replaced(
    instead: Callable[[str], Callable[..., Any] | None],
) -> Iterator[None]:
    """Replaces TensorFlow's stateful random operations, in the block.

    All of `tf.random`, `tf.nn.dropout` and `tf.image.random_*` call them as attributes
    of one module (tensorflow/python/ops/random_ops.py), and generators as attributes
    of another one (tensorflow/python/ops/stateful_random_ops.py, `Generator.skip`).

    Args:
      instead: Function from the name of an operation to another function without the
        arguments `seed`, `seed2` and `name`; None to call TensorFlow's.
    """

    def replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        names = inspect.signature(original)

        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            other = instead(name)
            if other is None:
                return original(*args, **kwargs)
            given = names.bind(*args, **kwargs).arguments
            for argument in ("seed", "seed2", "name"):
                given.pop(argument, None)
            return other(**given)

        return draw

    with (
        replaced(gen_random_ops, _STATEFUL_OPERATIONS, replacement),
        replaced(gen_stateful_random_ops, _GENERATOR_OPERATIONS, replacement),
    ):
        yield
