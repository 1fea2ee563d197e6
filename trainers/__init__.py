"""Training, evaluation and their results."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.api import TrainingResult, configure, fit, train

__all__ = ["TrainingResult", "configure", "fit", "train"]


def __getattr__(name: str) -> Any:
    """Imports the Python API on first access."""
    # An import of the API here would make `trainers.main` load its packages at
    # start-up.
    if name in __all__:
        return getattr(importlib.import_module("trainers.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
