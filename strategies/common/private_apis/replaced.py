"""Attributes of others' modules, classes and objects, replaced for a time."""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def replaced(
    place: Any, names: Iterable[str], replacement: Callable[[str, Any], Any]
) -> Iterator[None]:
    """Replaces attributes of a module or class in the block."""
    originals = {name: getattr(place, name) for name in names}
    for name, original in originals.items():
        setattr(place, name, replacement(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(place, name, original)


@contextlib.contextmanager
def replaced_in(instance: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replaces an attribute of a single object in the block.

    Afterwards the object has that of its class again, or what a user has put there.
    """
    former = vars(instance).get(name)
    setattr(instance, name, replacement)
    try:
        yield
    finally:
        delattr(instance, name)
        if former is not None:
            setattr(instance, name, former)


def files_without_package() -> AbstractContextManager[None]:
    """Lets `runpy.run_path` run files in the block with `__package__` None.

    So does Python, and programs ask for it. `run_path` has an empty text
    (Lib/runpy.py).
    """

    def without_package(_: str, run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: run(*args, **kwargs | {"pkg_name": None})

    return replaced(runpy, ["_run_module_code"], without_package)


def after_cleared_sessions(
    function: Callable[[], Any],
) -> AbstractContextManager[None]:
    """Calls a function whenever the block clears Keras's session.

    `keras.utils.clear_session` has several names. It resets Keras's defaults, and then
    replaces TensorFlow's default graph, which holds the scopes of eager code
    (keras/src/backend/common/global_state.py).
    """

    def with_function(_: str, reset: Callable[[], None]) -> Callable[[], None]:
        def reset_and_call() -> None:
            reset()
            function()

        return reset_and_call

    return replaced(tf.compat.v1, ["reset_default_graph"], with_function)


# Modules that define `Model` of Keras 2: of its own package, and of TensorFlow's copy.
_OF_KERAS_2 = (
    "tf_keras.src.engine.training",
    "tensorflow.python.keras.engine.training",
)


@contextlib.contextmanager
def replaced_fit_of_keras_2(
    replacement: Callable[[str, Any], Any],
) -> Iterator[None]:
    """Replaces `fit` of the models of Keras 2 in the block.

    Keras 2 is imported by a program or not at all, because that takes a second.
    """
    with contextlib.ExitStack() as block:

        def replace(module: ModuleType) -> None:
            block.enter_context(replaced(module.Model, ["fit"], replacement))

        finder = _Finder(replace)
        for name in _OF_KERAS_2:
            if name in sys.modules:
                replace(sys.modules[name])
        sys.meta_path.insert(0, finder)
        block.callback(sys.meta_path.remove, finder)
        yield


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function with each module that defines `Model`, once it is imported."""

    def __init__(self, function: Callable[[ModuleType], None]):
        self._function = function

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module as Python does."""
        if name not in _OF_KERAS_2:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = functools.partial(self._execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def _execute(
        self, execute: Callable[[ModuleType], None], module: ModuleType
    ) -> None:
        execute(module)
        self._function(module)
