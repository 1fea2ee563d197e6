"""Makes runs fail on purpose, and counts the promises that were broken.

  python -m benchmarks.faults                        # every scenario, hours
  python -m benchmarks.faults --only=NAME,... --tries=3
  python -m benchmarks.faults --list

Prints a row for each scenario and writes them to results/. A failure names the seed
with which --tries=1 repeats it. The limits of time are for an idle machine.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.faults.scenario import Row, Scenario, scenarios, tried

RESULTS = pathlib.Path(__file__).parents[1] / "results"


def main() -> int:
    """Returns 1 if a promise was broken."""
    arguments = _parsed()
    chosen = _chosen(arguments.only)
    if arguments.list:
        for scenario in chosen:
            print(f"{scenario.name}: {scenario.promise} ({scenario.tries} tries)")
        return 0
    console = Console()
    rows = []
    for scenario in chosen:
        with console.status(scenario.name):
            row = tried(scenario, arguments.tries or scenario.tries, arguments.seed)
        rows.append(row)
        console.print(_in_a_line(row))
    console.print(_table(rows))
    if not arguments.only:
        print(f"written: {_write(rows, arguments.seed)}")
    return int(any(row.failures for row in rows))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--tries", type=int, help="of each, in place of its own number")
    parser.add_argument("--seed", type=int, default=0, help="of the first try of each")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    return parser.parse_args()


def _chosen(only: str) -> Sequence[Scenario]:
    by_name = {scenario.name: scenario for scenario in scenarios()}
    names = only.split(",") if only else list(by_name)
    unknown = [name for name in names if name not in by_name]
    if unknown:
        known = ", ".join(by_name)
        print(f"--only={','.join(unknown)} is unknown: use {known}.", file=sys.stderr)
        sys.exit(2)
    return [by_name[name] for name in names]


def _in_a_line(row: Row) -> str:
    failures = f"{len(row.failures)} failed" if row.failures else "as promised"
    return f"{row.scenario.name}: {row.tries} tries, {failures}"


def _cells(row: Row) -> tuple[str, ...]:
    worst = "" if row.worst_seconds is None else f"{row.worst_seconds:.1f} s"
    limit = row.scenario.most_seconds
    allowed = "" if limit is None else f"{limit:g} s"
    result = "; ".join(row.failures[:3]) or "as promised"
    return (
        row.scenario.name,
        str(row.tries),
        str(len(row.failures)),
        worst,
        allowed,
        result,
    )


_HEADINGS = ("scenario", "tries", "failures", "worst", "at most", "result")


def _table(rows: Sequence[Row]) -> Table:
    table = Table(*_HEADINGS)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _write(rows: Sequence[Row], seed: int) -> pathlib.Path:
    # TensorFlow, which takes seconds and is not needed before.
    from trainers.results import hardware

    machine = hardware()
    cores_and_cpu = f"{machine['cpu_cores']}x {machine['cpu']}"
    lines = [
        f"`python -m benchmarks.faults --seed={seed}` on {cores_and_cpu}:",
        "",
        "| " + " | ".join([*_HEADINGS, "promise"]) + " |",
        "|---" * (len(_HEADINGS) + 1) + "|",
        *(
            "| " + " | ".join([*_cells(row), row.scenario.promise]) + " |"
            for row in rows
        ),
        "",
    ]
    name = re.sub(r"\W+", "-", cores_and_cpu).strip("-").lower()
    path = RESULTS / f"faults_{name}_{datetime.date.today().isoformat()}.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
