"""Makes runs fail on purpose, and counts the promises that were broken.

  python -m benchmarks.faults                        # every scenario, hours
  python -m benchmarks.faults --only=NAME,... --tries=3
  python -m benchmarks.faults --only=random-faults --minutes=60
  python -m benchmarks.faults --list

Prints a row for each scenario; with --record it takes the place of the one in results/.
A failure names the seed with which --tries=1 repeats it. The limits of time are for an
idle machine.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.choice import chosen, table_of
from benchmarks.faults.record import HEADINGS, cells, recorded
from benchmarks.faults.scenario import Row, Scenario, scenarios, tried
from tests import processes


def main() -> int:
    """Returns 1 if a promise was broken."""
    arguments = _parsed()
    processes.give_children_default_signals()
    asked = chosen(arguments.only, {each.name: each for each in scenarios()})
    if arguments.list:
        for scenario in asked:
            print(f"{scenario.name}: {scenario.promise} ({scenario.tries} tries)")
        return 0
    console = Console()
    rows = []
    for scenario in asked:
        row = _with_progress(console, scenario, arguments)
        rows.append(row)
        console.print(_in_a_line(row))
        if arguments.record:
            table = recorded(row, arguments.seed)
    console.print(table_of(HEADINGS, [cells(row) for row in rows]))
    if arguments.record:
        print(f"written: {table}")
    return int(any(row.failures for row in rows))


def _with_progress(
    console: Console, scenario: Scenario, arguments: argparse.Namespace
) -> Row:
    """Tries a scenario, and shows how far it is."""
    tries = arguments.tries or scenario.tries
    most_seconds = math.inf
    if arguments.minutes is not None:
        tries, most_seconds = arguments.tries or sys.maxsize, 60 * arguments.minutes
    often = "many" if tries == sys.maxsize else str(tries)
    with console.status(scenario.name) as status:

        def show(number: int, failures: Sequence[str]) -> None:
            said = f"{len(failures)} failed" if failures else "no failure yet"
            status.update(f"{scenario.name}: try {number} of {often}, {said}")

        return tried(scenario, tries, arguments.seed, show, most_seconds)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--tries", type=int, help="of each, in place of its own number")
    parser.add_argument("--minutes", type=float, help="of each, as many as then begin")
    parser.add_argument("--seed", type=int, default=0, help="of the first try of each")
    parser.add_argument(
        "--record", action="store_true", help="put the rows into benchmarks/results"
    )
    parser.add_argument("--list", action="store_true", help="only say what there is")
    return parser.parse_args()


def _in_a_line(row: Row) -> str:
    failures = f"{len(row.failures)} failed" if row.failures else "as promised"
    return f"{row.scenario.name}: {row.tries} tries, {failures}"


if __name__ == "__main__":
    sys.exit(main())
