"""The rows of all scenarios, each as it was last tried on this kind of machine."""

from __future__ import annotations

import datetime
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.scenario import Row
from benchmarks.machine import RESULTS, machine, name_in_files
from strategies.common.files import write_json

HEADINGS = ("scenario", "tries", "failures", "worst", "at most", "result")


def recorded(row: Row, seed: int) -> pathlib.Path:
    """Puts a row in the place of the one that its scenario had.

    Args:
      row: what tries of a scenario came to.
      seed: of the first of them.

    Returns:
      The table, with a row for every scenario that was ever recorded.
    """
    here = machine()
    rows = RESULTS / f"faults_{name_in_files(here)}.json"
    found = json.loads(rows.read_text(encoding="utf-8")) if rows.exists() else {}
    scenario = row.scenario
    found[scenario.name] = {
        "cells": cells(row),
        "failures": list(row.failures),
        "promise": scenario.promise,
        "command": f"--only={scenario.name} --tries={row.tries} --seed={seed}",
        "minutes": round(row.minutes, 1),
        "date": datetime.date.today().isoformat(),
    }
    write_json(rows, dict(sorted(found.items())))
    table = rows.with_suffix(".md")
    table.write_text(_page(here["name"], found), encoding="utf-8")
    return table


def cells(row: Row) -> Sequence[str]:
    """Of a row, below the headings."""
    worst = "" if row.worst_seconds is None else f"{row.worst_seconds:.1f} s"
    limit = row.scenario.most_seconds
    return (
        row.scenario.name,
        str(row.tries),
        str(len(row.failures)),
        worst,
        "" if limit is None else f"{limit:g} s",
        "; ".join(row.failures[:3]) or "as promised",
    )


def _how(row: Mapping[str, Any]) -> str:
    minutes = f", {row['minutes']:g} minutes" if "minutes" in row else ""
    return f"`{row['command']}`{minutes}"


def _page(name: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    headings = [*HEADINGS, "promise", "date"]
    lines = [
        f"`python -m benchmarks.faults --record` on {name}. Each row is the last",
        "one of its scenario, by this command with the flags below the table.",
        "",
        f"| {' | '.join(headings)} |",
        "|---" * len(headings) + "|",
    ]
    rows = [found[scenario] for scenario in sorted(found)]
    for row in rows:
        lines.append(f"| {' | '.join([*row['cells'], row['promise'], row['date']])} |")
    lines += ["", *(f"- {_how(row)}" for row in rows), ""]
    return "\n".join(lines)
