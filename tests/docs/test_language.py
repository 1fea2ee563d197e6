"""Language rules of docstrings and documents."""

import ast
import functools
import json
import re
from collections.abc import Iterator

import pytest

from tests.processes import ROOT

CODE = ("strategies", "models", "trainers", "tests", "benchmarks", "examples")
RULES = ("opening", "fragment", "phrase")

CLAUSE = r"what|how|which|whether|who|whom|whose|where|when|why"
PREPOSITION = r"of|by|to|from|at|in|until|for|with|on|over|into|if|as"
# A docstring may open neither with a clause nor with a preposition.
OPENING = re.compile(
    rf"(?:{CLAUSE}|{PREPOSITION}|after|before|between|without|so)\b|the same\b", re.I
)
# An entry of Args, Attributes or Raises may not open so either: it names a thing.
FRAGMENT = re.compile(rf"(?:{CLAUSE}|{PREPOSITION}|that|likewise|see|told)\b", re.I)
ENTRY = re.compile(r"^ {2,}\*{0,2}\w+: (.*)$", re.M)
PHRASE = re.compile(
    r"\b(?:what is|those that|those of|one that|of its own|be it|all the same|comes? to"
    r"|came to|tells? of|told|so many|likewise|at hand|whatever|besides|goes on"
    r"|its like)\b",
    re.I,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def docstrings(part: str) -> list[tuple[str, str]]:
    """Returns the place and text of each docstring in a folder of source code."""
    found = []
    for path in sorted((ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text is not None:
                line = getattr(node, "lineno", 1)
                found.append((f"{path.relative_to(ROOT)}:{line}", text))
    return found


def documents() -> Iterator[tuple[str, str]]:
    """Yields the name and text of each document, without blocks of code and output."""
    folders = (ROOT, ROOT / "docs", ROOT / "deploy", ROOT / "examples")
    for path in (path for folder in folders for path in folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
        yield str(path.relative_to(ROOT)), prose
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        prose = "\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
        yield str(path.relative_to(ROOT)), prose


def places(rule: str, part: str) -> list[str]:
    """Returns each place in a part that breaks a rule, with the words that break it."""
    found = []
    for place, text in documents() if part == "documents" else docstrings(part):
        if rule == "opening":
            match = OPENING.match(text)
            words = [] if match is None else [match.group()]
        elif rule == "fragment":
            words = [entry for entry in ENTRY.findall(text) if FRAGMENT.match(entry)]
        else:
            words = PHRASE.findall(text)
        found += [f"{place}: {word}" for word in words]
    return found


@pytest.mark.parametrize(
    ("rule", "part"),
    [*((rule, part) for rule in RULES for part in CODE), ("phrase", "documents")],
)
def test_no_place_breaks_a_rule(rule: str, part: str) -> None:
    found = places(rule, part)
    assert not found, "\n".join(found)
