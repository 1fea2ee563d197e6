"""Discovery of the strategies in this folder, without importing them.

A module of this folder that defines `class Something(Strategy)` is a strategy. Its
`name` and `traits` are read from the syntax tree: importing the module would load
TensorFlow, which takes seconds, only to print `--help` or to refuse a misspelled flag.
They must therefore be literals; a test compares the values read here with an import.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strategies.common.errors import UsageError

if TYPE_CHECKING:
    from strategies.base import Strategy, Traits

_FOLDER = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class _Declaration:
    module: str
    class_name: str
    traits: dict[str, Any]


def names() -> tuple[str, ...]:
    """Returns the names of all strategies, sorted."""
    return tuple(sorted(_declarations()))


def names_where(condition: Callable[[Traits], object]) -> Callable[[], tuple[str, ...]]:
    """Returns a function that lists the strategies whose traits meet a condition."""
    return lambda: tuple(name for name in names() if condition(traits(name)))


def traits(name: str) -> Traits:
    """Returns the traits that a strategy declares."""
    # `strategies.base` imports `strategies.config`, which imports this module.
    from strategies.base import Traits

    return Traits(**_declaration(name).traits)


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
    found = {}
    # Only this folder: subfolders hold no strategies.
    for path in sorted(_FOLDER.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "Strategy"
                for base in node.bases
            ):
                name, traits = _literals(node, path)
                found[name] = _Declaration(f"strategies.{path.stem}", node.name, traits)
    return found


def _literals(node: ast.ClassDef, path: pathlib.Path) -> tuple[str, dict[str, Any]]:
    values = {
        statement.targets[0].id: statement.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
    }
    call = values.get("traits")
    name = values.get("name")
    if not isinstance(call, ast.Call) or not isinstance(name, ast.Constant):
        raise TypeError(
            f"{path.name}: class {node.name} must set name = '...' and "
            "traits = Traits(...) as literals."
        )
    # `literal_eval` raises ValueError for anything but a literal.
    return str(name.value), {
        str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
    }
