"""Private names of random numbers in Keras and TensorFlow."""

import contextlib
import functools
import inspect
import random as random_of_python
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.tensorflow import random
from keras.src.random import seed_generator
from keras.src.random.seed_generator import draw_seed
from tensorflow.python.eager import context
from tensorflow.python.ops import gen_random_ops, gen_stateful_random_ops

from strategies.common.private_apis.replaced import replaced


def seeds_state() -> dict[str, Any]:
    """Returns the states from which eager draws without a seed begin, for JSON.

    TensorFlow draws the seeds of its operations from a generator of Python, if it has
    a seed (tensorflow/python/eager/context.py, `internal_operation_seed`). Keras has a
    generator for all draws, which the first draw makes.
    """
    seed = context.global_seed()
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return {
        "tensorflow": None
        if seed is None
        else [int(seed), context.context()._rng.getstate()],
        "keras": None if generator is None else generator.state.numpy().tolist(),
    }


def set_seeds_state(state: Mapping[str, Any]) -> None:
    """Continues from a state of `seeds_state`, also if it was JSON.

    Keras may draw the first seed of a generator from Python's `random`.
    """
    present = context.context()
    present._seed = None
    if state["tensorflow"] is not None:
        present._seed, (version, keys, next_gauss) = state["tensorflow"]
        present._rng = random_of_python.Random()
        present._rng.setstate((version, tuple(keys), next_gauss))
    name, of_keras = seed_generator.GLOBAL_SEED_GENERATOR, state["keras"]
    if of_keras is None:
        global_state.set_global_attribute(name, None)
    else:
        seed_generator.global_seed_generator().state.assign(of_keras)


_RANDOM_FUNCTIONS = (
    *("uniform", "normal", "truncated_normal", "randint", "categorical", "dropout"),
)


def random_functions_replaced(
    instead: Callable[[str, tf.Tensor], Callable[..., Any] | None],
) -> AbstractContextManager[None]:
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

    return replaced(random, _RANDOM_FUNCTIONS, replacement)


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
        _unseeded_draws_replaced(instead),
        _other_generators_replaced(instead),
    ):
        yield


# Name of a seed of Keras, in place of that of an operation.
SEED = "seed"


def _unseeded_draws_replaced(
    instead: Callable[[str], Callable[..., Any] | None],
) -> AbstractContextManager[None]:
    """Replaces the seeds of what Keras draws without one, in the block.

    Each thread has a generator for them, which the first draw makes (keras/src/random/
    seed_generator.py, `draw_seed`). The threads of replicas can make no variable, and a
    `keras.StatelessScope` undoes its advance: every step drew the same numbers.

    Args:
      instead: Function as of `stateful_draws_replaced`, called with the name `SEED`.
    """

    def replacement(name: str, original: Callable[[], Any]) -> Callable[[], Any]:
        def generator() -> Any:
            other = instead(SEED)
            if other is None:
                return original()
            return types.SimpleNamespace(next=lambda ordered: other())

        return generator

    return replaced(seed_generator, ["global_seed_generator"], replacement)


def _other_generators_replaced(
    instead: Callable[[str], Callable[..., Any] | None],
) -> AbstractContextManager[None]:
    """Replaces the seeds of generators that no layer has, in the same way.

    In a `keras.StatelessScope` the generators of layers have values.
    """

    def replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def draw(generator: Any, ordered: bool = True) -> Any:
            scope = get_stateless_scope()
            is_of_layer = scope is None or id(generator.state) in scope.state_mapping
            other = None if is_of_layer else instead(SEED)
            return original(generator, ordered) if other is None else other()

        return draw

    return replaced(keras.random.SeedGenerator, ["next"], replacement)
