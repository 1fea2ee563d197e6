"""Models that can be trained, one per file in this folder."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from models import catalogue, factories

if TYPE_CHECKING:
    from models.classification import ModelSpec


def names() -> tuple[str, ...]:
    """Returns the name of every file with a SPEC, sorted; imports no TensorFlow."""
    files = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return tuple(f.stem for f in files if re.search(rb"(?m)^SPEC\b", f.read_bytes()))


def using(setting: str) -> Callable[[], tuple[str, ...]]:
    """Returns a function that names the models with a setting in their `SETTINGS`.

    It reads the sources, because importing a model loads TensorFlow.
    """
    return lambda: tuple(name for name in names() if setting in _settings_of(name))


@functools.cache
def _settings_of(name: str) -> tuple[str, ...]:
    source = (pathlib.Path(__file__).parent / f"{name}.py").read_bytes()
    settings = ()
    try:
        for node in ast.parse(source).body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id="SETTINGS")], value=value)
                    | ast.AnnAssign(
                        target=ast.Name(id="SETTINGS"), value=ast.expr() as value
                    )
                ):
                    settings = ast.literal_eval(value)
        if not isinstance(settings, tuple):
            raise ValueError("SETTINGS is no tuple")
    # `literal_eval` raises ValueError for no literal, with the address of an object,
    # and TypeError for a list as a key.
    except (SyntaxError, TypeError, ValueError) as error:
        problem = str(error).partition(": <")[0]
        raise ValueError(
            f"models/{name}.py has no settings that can be read ({problem}): "
            "correct the file, with SETTINGS a tuple such as ('dropout',)."
        ) from error
    return settings


def why_not(name: str) -> str | None:
    """Returns why a name that is not among `names` is not accepted.

    Returns:
      The end of a sentence that begins with the name; None for the name of a classifier
      of keras.applications, such as keras:ResNet50, or of a factory.
    """
    if name.startswith(catalogue.PREFIX):
        return catalogue.why_not(name)
    if factories.is_factory(name):
        return None
    if name.endswith(".py"):
        return (
            f"names a file and no function: give {name}:FUNCTION, or a program with "
            f"fit as --script={name}."
        )
    return (
        f"is unknown; choose one of {', '.join(names())}, or "
        f"{catalogue.spelled(name)}, a classifier of keras.applications, or "
        f"{factories.FORM}, your own."
    )


def load(name: str) -> ModelSpec:
    """Returns the model of a name; loads TensorFlow and Keras."""
    if name.startswith(catalogue.PREFIX):
        module = importlib.import_module("models.keras_applications")
        return module.spec_of(name.removeprefix(catalogue.PREFIX))
    # Every module of a model defines SPEC.
    return importlib.import_module(f"models.{name}").SPEC
