"""The table of all scenarios, each with its last tries on this kind of machine."""

import datetime
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.files import write_json
from strategies.common.native_log import native_log_hidden
from tests.fault_injection.scenario import Row

RESULTS = pathlib.Path(__file__).parent / "results"
HEADINGS = ("scenario", "tries", "failures", "worst", "at most", "result")


def record(row: Row, seed: int, machine: str, folder: pathlib.Path) -> pathlib.Path:
    """Replaces the row of a scenario.

    Args:
      row: The new row.
      seed: Seed of the first try.
      machine: Name of the machine.
      folder: Folder of the tables, one for each kind of machine.

    Returns:
      The table, which has a row for every scenario that was ever recorded.
    """
    rows = folder / (re.sub(r"\W+", "-", machine).strip("-").lower() + ".json")
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
    found = dict(sorted(found.items()))
    write_json(rows, found)
    table = rows.with_suffix(".md")
    table.write_text(page(machine, found), encoding="utf-8")
    return table


def cells(row: Row) -> Sequence[str]:
    """Returns the cells of a row, one for each of `HEADINGS`."""
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


def page(machine: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the table as a document, with the command of each row."""
    headings = [*HEADINGS, "promise", "date"]
    lines = [
        f"`python -m tests.fault_injection --record` on {machine}. Each row is the "
        "last",
        "one of its scenario, by this command with the flags below the table.",
        "",
        f"| {' | '.join(headings)} |",
        "|---" * len(headings) + "|",
    ]
    for row in found.values():
        lines.append(f"| {' | '.join([*row['cells'], row['promise'], row['date']])} |")
    lines.append("")
    for row in found.values():
        minutes = f", {row['minutes']:g} minutes" if "minutes" in row else ""
        lines.append(f"- `{row['command']}`{minutes}")
    return "\n".join([*lines, ""])


def name_of_this_machine() -> str:
    """Returns the number and the kind of its CPUs."""
    # This module imports TensorFlow, which takes seconds.
    with native_log_hidden():
        from trainers.reporting.result import hardware

        found = hardware()
    return f"{found['cpu_cores']}x {found['cpu']}"
