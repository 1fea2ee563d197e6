"""Discovery of the strategies in this folder, without importing them.

A module of this folder that defines `class Something(Strategy)` is a strategy. Its
`name` and `traits` are read from the syntax tree: importing the module would load
TensorFlow, which takes seconds, only to print `--help` or to refuse a misspelled flag.
They must therefore be literals; a test compares the values read here with an import.
"""

import ast
import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

from strategies.base import Strategy, Traits
from strategies.common.errors import UsageError
from strategies.common.text import one_line

_FOLDER = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class _Declaration:
    module: str
    class_name: str
    traits: dict[str, Any]

    @property
    def path(self) -> str:
        return self.module.replace(".", "/") + ".py"


def names() -> tuple[str, ...]:
    """Returns the names of all strategies, sorted."""
    return tuple(sorted(_declarations()))


def names_where(condition: Callable[[Traits], object]) -> Callable[[], tuple[str, ...]]:
    """Returns a function that lists the strategies whose traits meet a condition."""
    return lambda: tuple(name for name in names() if condition(traits(name)))


def traits(name: str) -> Traits:
    """Returns the traits that a strategy declares."""
    declaration = _declaration(name)
    try:
        return Traits(**declaration.traits)
    except TypeError as error:
        raise UsageError(
            f"{declaration.path}: traits of class {declaration.class_name} are "
            f"unusable ({one_line(error)}): correct them; strategies/base.py has all."
        ) from error


def load(name: str) -> type[Strategy]:
    """Imports and returns a strategy's class, and with it TensorFlow."""
    declaration = _declaration(name)
    module = importlib.import_module(declaration.module)
    return getattr(module, declaration.class_name)


def _declaration(name: str) -> _Declaration:
    found = _declarations().get(name)
    if found is None:
        raise UsageError(
            f"--strategy={name} is unknown; choose one of {', '.join(names())}."
        )
    return found


@functools.cache
def _declarations() -> dict[str, _Declaration]:
    found: dict[str, _Declaration] = {}
    # Only this folder: subfolders hold no strategies.
    for path in sorted(_FOLDER.glob("*.py")):
        for node in _strategy_classes(path):
            name, traits = _literals(node, path)
            if name in found:
                raise UsageError(
                    f"strategies/{path.name}: class {node.name} has the name "
                    f"{name!r} of {found[name].path}: give each its own."
                )
            found[name] = _Declaration(f"strategies.{path.stem}", node.name, traits)
    return found


def _strategy_classes(path: pathlib.Path) -> list[ast.ClassDef]:
    """Returns the classes of a file with the base class `Strategy`."""
    return [
        node
        for node in _parsed(path).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(b, ast.Name) and b.id == "Strategy" for b in node.bases)
    ]


def _parsed(path: pathlib.Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    # ValueError is for bytes that are no text.
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"strategies/{path.name} is no Python program ({one_line(error)}): correct "
            "it, or move it out of the folder."
        ) from error


def _literals(node: ast.ClassDef, path: pathlib.Path) -> tuple[str, dict[str, Any]]:
    values = {
        statement.targets[0].id: statement.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
    }
    call = values.get("traits")
    try:
        if not isinstance(call, ast.Call):
            raise ValueError("traits are no call of Traits")
        return str(ast.literal_eval(values["name"])), {
            str(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    # `literal_eval` raises ValueError for anything but a literal.
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"strategies/{path.name}: class {node.name} sets no name = '...' or no "
            "traits = Traits(...) in literals, which are read without running the "
            "file: give both as strings, numbers, booleans, None and tuples."
        ) from error
