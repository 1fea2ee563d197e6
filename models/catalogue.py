"""The classifiers of keras.applications by name, without loading Keras.

`--model=keras:NAME` is one of them. A misspelt name is refused, with those that are
like it, before anything that takes seconds to load.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import pathlib

PREFIX = "keras:"

# What Keras's package exports as keras.applications, read as text;
# tests/models/test_keras_applications.py compares it with what an import gives.
_EXPORTS = pathlib.Path("applications/__init__.py")
_MOST_SUGGESTIONS = 3


@functools.cache
def classifiers() -> tuple[str, ...]:
    """Their names, without the prefix, sorted.

    Raises:
      ModuleNotFoundError: Keras is not installed.
    """
    spec = importlib.util.find_spec("keras")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'keras'", name="keras")
    exports = pathlib.Path(spec.origin).parent / _EXPORTS
    names = {
        alias.asname or alias.name
        for node in ast.parse(exports.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # Modules are in lower case.
    return tuple(sorted(name for name in names if name[:1].isupper()))


def why_not(name: str) -> str | None:
    """What is wrong with `keras:NAME`, as the end of a sentence that begins with it.

    Returns:
      None if there is a classifier of that name.
    """
    known = classifiers()
    wanted = name.removeprefix(PREFIX)
    if wanted in known:
        return None
    near = _like(wanted, known)
    suggestion = f"near it: {near}" if near else f"such as {PREFIX}ResNet50"
    return (
        f"is none of the {len(known)} classifiers of keras.applications; {suggestion}."
    )


def spelled(name: str) -> str:
    """`keras:NAME` for a name without the prefix, capital letters aside."""
    found = (other for other in classifiers() if other.lower() == name.lower())
    return PREFIX + next(found, "NAME")


def _like(name: str, known: tuple[str, ...]) -> str:
    """Those that differ least, capital letters aside, with the prefix."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=_MOST_SUGGESTIONS)
    return ", ".join(PREFIX + by_lower[lower] for lower in found)
