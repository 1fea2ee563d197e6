"""Variables that a function needs, made while it is traced."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """Makes variables in the block as if no function were being traced.

    Variables of a graph end with the graph. TensorFlow traces a function a second time
    if it makes variables, even in `tf.init_scope`
    (tensorflow/python/eager/polymorphic_function/polymorphic_function.py,
    `_initialize`).
    """
    with tf.init_scope(), tf.variable_creator_scope(_made_at_once):
        yield


def _made_at_once(make: Callable[..., Any], **arguments: Any) -> Any:
    return make(**{**arguments, "experimental_enable_variable_lifting": False})
