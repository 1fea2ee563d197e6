"""Training, evaluation and what they leave behind."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.api import TrainingResult, configure, train

__all__ = ["TrainingResult", "configure", "train"]


def __getattr__(name: str) -> Any:
    """From the library when asked for: `trainers.main` starts without its packages."""
    if name in __all__:
        return getattr(importlib.import_module("trainers.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
