"""Models that can be trained, one per file in this folder."""

from __future__ import annotations

import importlib
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from models import catalogue, factories

if TYPE_CHECKING:
    from models.classification import ModelSpec

# Modules of this folder that define no model.
_NOT_MODELS = {
    *("__init__", "base", "objective", "classification", "embedding"),
    *("catalogue", "factories", "keras_applications", "name_collisions"),
}


def names() -> tuple[str, ...]:
    """Returns the name of every model, sorted; does not import TensorFlow."""
    folder = pathlib.Path(__file__).parent
    return tuple(sorted({path.stem for path in folder.glob("*.py")} - _NOT_MODELS))


def reading(setting: str) -> Callable[[], tuple[str, ...]]:
    """Returns a function that names the models with a use for a setting.

    It looks at the sources, because importing a model loads TensorFlow.

    Args:
      setting: Field of `models.base.Settings`.

    Returns:
      A function without arguments that returns names, and `keras:*` for the classifiers
      of keras.applications.
    """

    def found() -> tuple[str, ...]:
        folder = pathlib.Path(__file__).parent
        sources = {p.stem: p.read_text(encoding="utf-8") for p in folder.glob("*.py")}

        def reads(name: str) -> bool:
            # A model may hand its settings on to another one, as wide_embedding does.
            text = sources[name]
            others = re.findall(r"^from models\.(\w+) import", text, re.MULTILINE)
            return f"settings.{setting}" in text or any(map(reads, others))

        of_keras = [f"{catalogue.PREFIX}*"] if reads("keras_applications") else []
        return (*filter(reads, names()), *of_keras)

    return found


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
