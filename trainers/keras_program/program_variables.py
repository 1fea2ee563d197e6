"""Variables that a program makes beside its model, such as the weight of a loss."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies.common.private_apis.replaced import after_cleared_sessions


class ProgramVariables:
    """Variables that a program has made outside of its calls of `fit`.

    A loss, a layer or a learning rate may read a variable which callbacks set. These
    run on the chief, so that other tasks need its value.
    """

    def __init__(self) -> None:
        # In the order in which the program has made them. It may drop some.
        self._made: list[weakref.ref[tf.Variable]] = []
        self._is_in_fit = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the variables that are made in the block, which runs the program."""

        def note(make_next: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
            variable = make_next(**settings)
            if not self._is_in_fit:
                self._made.append(weakref.ref(variable))
            return variable

        with contextlib.ExitStack() as scopes:

            def begin() -> None:
                scopes.enter_context(tf.variable_creator_scope(note))

            scopes.enter_context(after_cleared_sessions(begin))
            begin()
            yield

    @contextlib.contextmanager
    def not_noted(self) -> Iterator[None]:
        """Notes nothing in the block, where a strategy makes variables."""
        self._is_in_fit = True
        try:
            yield
        finally:
            self._is_in_fit = False

    def read_in(self, graph: Any) -> list[tf.Variable]:
        """Returns the variables of a `tf.function`'s graph, except the model's.

        In place of the model's a strategy has made others. The order is the same on all
        tasks: TensorFlow keeps variables in a set, whose order is not.
        """
        read = {id(variable) for variable in graph.variables}
        present = [made() for made in self._made]
        return [one for one in present if one is not None and id(one) in read]
