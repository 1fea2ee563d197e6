"""Text for error messages and tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_WIDTH = 80


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table in 80 columns; only the first column is cut and left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Two spaces stand before each column but the first.
    name_width = min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    return [
        "  ".join(
            [
                f"{row[0][:name_width]:<{name_width}}",
                *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]


# Enough of a value to recognize it, and little enough for one readable line.
_MOST_CHARACTERS_SHOWN = 100


def shown(value: Any) -> str:
    """A value as a message shows it: words as they are, the rest as in JSON."""
    text = value if isinstance(value, str) else as_json(value)
    if len(text) > _MOST_CHARACTERS_SHOWN:
        text = text[:_MOST_CHARACTERS_SHOWN] + "..."
    return printable(text)


def as_json(value: Any) -> str:
    """A value as JSON, or dots if it is nested too deeply to be written."""
    try:
        return json.dumps(value, default=repr)
    except RecursionError:
        return "..."


def as_argument(value: Any) -> str:
    """Returns a value as a user gives it on the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


# TensorFlow 2.21 begins the message of an error in a function with where the operation
# was made: "Graph execution error:", "Detected at node while/add defined at (most
# recent call last):", and a line for each call.
_WHERE_MADE = re.compile(
    r'^(?:Graph execution error:|Detected at node .* defined at \(.*\):|  File ".*)$',
    re.MULTILINE,
)
# Of a terminal's colors: Keras writes some of its errors in bold.
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def one_line(error: BaseException) -> str:
    """Returns an error's message, from the cause on, in one line without colors."""
    message = _COLOR.sub("", str(error))
    cause = _WHERE_MADE.sub("", message)
    return " ".join((cause if cause.strip() else message).split())


def printable(text: str) -> str:
    """Returns the text with escapes for line breaks and control characters."""
    # A message must not move the cursor or print a second line.
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )
