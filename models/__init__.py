"""Models that can be trained: one file each, found by a scan of this folder."""

from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.base import ModelSpec

_NOT_MODELS = {"__init__", "base", "embedding"}


def names() -> tuple[str, ...]:
    """Every model, sorted by name. Does not import TensorFlow."""
    folder = pathlib.Path(__file__).parent
    return tuple(sorted({path.stem for path in folder.glob("*.py")} - _NOT_MODELS))


def load(name: str) -> ModelSpec:
    """The model of that name; importing it loads TensorFlow and Keras."""
    return importlib.import_module(f"models.{name}").SPEC
