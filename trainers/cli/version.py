"""Which version this is."""

from __future__ import annotations

import importlib.metadata
import platform

VERSION = "0.1.0"

# Those that decide what a run does.
_PACKAGES = ("tensorflow", "keras", "numpy")


def in_words() -> str:
    """For `--version`; imports none of the packages."""
    packages = [f"{name} {_installed(name)}" for name in _PACKAGES]
    return ", ".join([VERSION, f"Python {platform.python_version()}", *packages])


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
