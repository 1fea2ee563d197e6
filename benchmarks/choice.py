"""What the commands of benchmarks have in common."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

from rich.table import Table

_T = TypeVar("_T")


def chosen(only: str, by_name: Mapping[str, _T]) -> Sequence[_T]:
    """What --only names, separated by commas; all if it is empty.

    Ends the process with exit code 2 and a line if a name is unknown.
    """
    names = only.split(",") if only else list(by_name)
    unknown = [name for name in names if name not in by_name]
    if unknown:
        known = ", ".join(by_name)
        print(f"--only={','.join(unknown)} is unknown: use {known}.", file=sys.stderr)
        sys.exit(2)
    return [by_name[name] for name in names]


def table_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """For the terminal."""
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    return table
