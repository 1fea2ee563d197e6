"""Models that can be trained: one file each, found by a scan of this folder."""

from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING

from models import catalogue, factories

if TYPE_CHECKING:
    from models.base import ModelSpec

_NOT_MODELS = {
    *("__init__", "base", "catalogue", "embedding", "factories", "keras_applications"),
}


def names() -> tuple[str, ...]:
    """Every model, sorted by name. Does not import TensorFlow."""
    folder = pathlib.Path(__file__).parent
    return tuple(sorted({path.stem for path in folder.glob("*.py")} - _NOT_MODELS))


def of_keras() -> tuple[str, ...]:
    """`keras:NAME` of every classifier of keras.applications; none without Keras."""
    try:
        return tuple(catalogue.PREFIX + name for name in catalogue.classifiers())
    except ModuleNotFoundError:
        return ()


def why_not(name: str) -> str | None:
    """What is wrong with a name that is not among `names`.

    Returns:
      The end of a sentence that begins with the name; None if it is that of a
      classifier of keras.applications, such as keras:ResNet50, or of a factory.
    """
    if name.startswith(catalogue.PREFIX):
        return catalogue.why_not(name)
    if factories.is_factory(name):
        return None
    return (
        f"is unknown; choose one of {', '.join(names())}, or "
        f"{catalogue.spelled(name)}, a classifier of keras.applications, or "
        f"{factories.FORM}, your own."
    )


def load(name: str) -> ModelSpec:
    """The model of that name; importing it loads TensorFlow and Keras."""
    if name.startswith(catalogue.PREFIX):
        module = importlib.import_module("models.keras_applications")
        return module.spec_of(name.removeprefix(catalogue.PREFIX))
    return importlib.import_module(f"models.{name}").SPEC
