"""Private names of random numbers in Keras."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import random
from keras.src.random.seed_generator import draw_seed

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

    originals = {name: getattr(random, name) for name in _RANDOM_FUNCTIONS}
    for name, original in originals.items():
        setattr(random, name, replacement(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(random, name, original)
