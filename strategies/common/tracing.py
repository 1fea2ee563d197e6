"""Traces of functions: variables made in them, and the origins of tensors."""

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
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


def origins(
    values: Iterable[tf.Tensor], known: Container[str] = ()
) -> Iterator[tf.Tensor]:
    """Yields tensors and all that they are computed from, up to known names."""
    seen: set[str] = set()
    pending = list(values)
    while pending:
        tensor = pending.pop()
        if tensor.name not in seen:
            seen.add(tensor.name)
            yield tensor
            if tensor.name not in known:
                pending += tensor.op.inputs
