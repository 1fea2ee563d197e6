"""Command that makes runs fail on purpose, and counts the promises that were broken.

  python -m tests.fault_injection                        # every scenario, hours
  python -m tests.fault_injection --only=NAME,... --tries=3
  python -m tests.fault_injection --only=random-faults --minutes=60
  python -m tests.fault_injection --list

Prints a row for each scenario; with --record the row replaces the one in results/.
A failure names the seed that repeats it with --tries=1. The time limits are for an
idle machine.
"""

import argparse
import math
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests import processes
from tests.fault_injection.record import (
    HEADINGS,
    RESULTS,
    cells,
    name_of_this_machine,
    record,
)
from tests.fault_injection.scenario import Row, Scenario, run_scenario
from tests.fault_injection.scenarios import all_scenarios


def main() -> int:
    """Returns 1 if a promise was broken."""
    arguments = _parse_arguments()
    processes.give_children_default_signals()
    chosen = _chosen_scenarios(arguments.only)
    if arguments.list:
        for scenario in chosen:
            print(f"{scenario.name}: {scenario.promise} ({scenario.tries} tries)")
        return 0
    console = Console()
    machine = name_of_this_machine() if arguments.record else ""
    table = Table(*HEADINGS)
    num_broken = 0
    for scenario in chosen:
        row = _run_with_progress(console, scenario, arguments)
        num_broken += bool(row.failures)
        table.add_row(*cells(row))
        outcome = f"{len(row.failures)} failed" if row.failures else "as promised"
        console.print(f"{scenario.name}: {row.tries} tries, {outcome}")
        if arguments.record:
            written = record(row, arguments.seed, machine, RESULTS)
    console.print(table)
    if arguments.record:
        print(f"written: {written}")
    return int(num_broken > 0)


def _chosen_scenarios(only: str) -> Sequence[Scenario]:
    """Returns the scenarios of --only, or ends with exit code 2 if one is unknown."""
    by_name = {scenario.name: scenario for scenario in all_scenarios()}
    names = only.split(",") if only else list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        print(
            f"--only={','.join(unknown)} is unknown: use {', '.join(by_name)}.",
            file=sys.stderr,
        )
        sys.exit(2)
    return [by_name[name] for name in names]


def _run_with_progress(
    console: Console, scenario: Scenario, arguments: argparse.Namespace
) -> Row:
    """Tries a scenario, and shows the number of the try and of failures."""
    tries = arguments.tries or scenario.tries
    most_seconds = math.inf
    if arguments.minutes is not None:
        tries, most_seconds = arguments.tries or sys.maxsize, 60 * arguments.minutes
    limit = "many" if tries == sys.maxsize else str(tries)
    with console.status(scenario.name) as status:

        def show(number: int, failures: Sequence[str]) -> None:
            failed = f"{len(failures)} failed" if failures else "no failure yet"
            status.update(f"{scenario.name}: try {number} of {limit}, {failed}")

        return run_scenario(scenario, tries, arguments.seed, show, most_seconds)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--tries", type=int, help="tries of each, instead of its own")
    parser.add_argument("--minutes", type=float, help="minutes of tries of each")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first tries")
    parser.add_argument("--record", action="store_true", help="write into results/")
    parser.add_argument("--list", action="store_true", help="only list the scenarios")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
