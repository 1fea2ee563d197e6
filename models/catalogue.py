"""Names of the classifiers of keras.applications, without loading Keras.

`--model=keras:NAME` is one of them. A misspelled name is refused, with similar names,
before anything that takes seconds to load.
"""

import ast
import difflib
import functools
import importlib.util
import pathlib

PREFIX = "keras:"

# The exports of keras.applications, read as text;
# tests/models/test_keras_applications.py compares them with an import.
_EXPORTS = pathlib.Path("applications/__init__.py")
_MOST_SUGGESTIONS = 3


@functools.cache
def classifiers() -> tuple[str, ...]:
    """Returns the sorted names of all classifiers, without the prefix.

    Raises:
      ModuleNotFoundError: Keras is not installed.
    """
    # Finds the package without importing it.
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
    # Names of modules are in lower case, names of classifiers are not.
    return tuple(sorted(name for name in names if name[:1].isupper()))


def why_not(name: str) -> str | None:
    """Returns why `keras:NAME` is not accepted.

    Returns:
      The end of a sentence that begins with the name; None if there is such a
      classifier.
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
    """Returns `keras:NAME` with correct capitals for a name without the prefix."""
    found = (other for other in classifiers() if other.lower() == name.lower())
    # Without a match, the placeholder of the general form.
    return PREFIX + next(found, "NAME")


def _like(name: str, known: tuple[str, ...]) -> str:
    """Returns the most similar names with the prefix, ignoring case."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=_MOST_SUGGESTIONS)
    return ", ".join(PREFIX + by_lower[lower] for lower in found)
