"""Version of the project and of its main packages."""

import importlib.metadata
import platform

VERSION = "0.1.0"

# Packages whose versions affect the results of a run.
_PACKAGES = ("tensorflow", "keras", "numpy")


def in_words() -> str:
    """Returns the text of `--version` without importing the packages."""
    packages = [f"{name} {_installed(name)}" for name in _PACKAGES]
    return ", ".join([VERSION, f"Python {platform.python_version()}", *packages])


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
