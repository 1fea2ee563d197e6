"""Text for error messages and tables."""

import io
import json
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

# Words by which `--mode=verify` knows a warning that a training depends on the number
# of replicas.
NUMBER_MATTERS = "so that their number matters"


def table_lines(
    rows: Sequence[Sequence[str]], *, numbers: bool = True, width: int = 80
) -> list[str]:
    """Returns the lines of a table without borders and colors.

    Args:
      rows: Cells of each row; every row has the same number of cells.
      numbers: True to right-align all columns but the first.
      width: Most characters of a line; the first column is wrapped to fit.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in range(len(rows[0])):
        justify: JustifyMethod = "right" if numbers and column else "left"
        table.add_column(justify=justify, overflow="fold", no_wrap=column > 0)
    for row in rows:
        # Text, because brackets in a plain string would be rich's markup.
        table.add_row(*map(Text, row))
    # Standard output may be a terminal or a pipe: neither changes the table.
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


# Enough of a value to recognize it, and little enough for one readable line.
_MOST_CHARACTERS_SHOWN = 100


def shown(value: Any) -> str:
    """Returns a value for a message: text as it is, the rest as in JSON."""
    text = value if isinstance(value, str) else as_json(value)
    if len(text) > _MOST_CHARACTERS_SHOWN:
        text = text[:_MOST_CHARACTERS_SHOWN] + "..."
    return printable(text)


def as_json(value: Any) -> str:
    """Returns a value as JSON, or dots if it is nested too deeply to be written."""
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
    if isinstance(value, float):
        # 100.0 was most likely given as 100.
        return str(value).removesuffix(".0")
    return "none" if value is None else str(value)


def plural(noun: str, count: int) -> str:
    """Returns a noun, with an "s" unless the count is one."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, such as "1 core" or "2 cores"."""
    return f"{count:,} {plural(noun, count)}"


def every(interval: int, noun: str) -> str:
    """Returns an interval in words, such as "every step" or "every 5 steps"."""
    return f"every {noun if interval == 1 else counted(interval, noun)}"


# TensorFlow 2.21 begins the message of an error in a function with where the operation
# was made: "Graph execution error:", "Detected at node while/add defined at (most
# recent call last):", and a line for each call.
_WHERE_MADE = re.compile(
    r'^(?:Graph execution error:|Detected at node .* defined at \(.*\):|  File ".*)$',
    re.MULTILINE,
)
# What TensorFlow 2.21 puts around the message of an operation that ran by itself.
_OPERATION = re.compile(r"\{\{function_node [^}]*\}\} ?| ?\[Op:\w+\](?: name: ?)?")
# Of a terminal's colors: Keras writes some of its errors in bold.
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def one_line(error: BaseException) -> str:
    """Returns an error's message, from the cause on, in one line without colors."""
    message = _OPERATION.sub("", _COLOR.sub("", str(error)))
    cause = _WHERE_MADE.sub("", message)
    return " ".join((cause if cause.strip() else message).split())


def printable(text: str) -> str:
    """Returns the text with escapes for line breaks and control characters."""
    # A message must not move the cursor or print a second line.
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def unique_names(paths: Sequence[str]) -> list[str]:
    """Returns the names with a number appended to repeated ones.

    Layers of a subclassed model may share a name, and so may their variables.
    """
    seen: dict[str, int] = {}
    names = []
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        names.append(path if seen[path] == 1 else f"{path} ({seen[path]})")
    return names
