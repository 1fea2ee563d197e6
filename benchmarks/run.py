"""Measures the project beside the alternatives of a user.

  python -m benchmarks.run                       # everything, about an hour
  python -m benchmarks.run --only=NAME,...       # --list has the names
  python -m benchmarks.run --only=NAME --pairs=9 --record

Each subject is several pairs of runs, one after the other, after one pair that is
discarded. --record writes into results/. Exit code 1 if a ratio is below its goal.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.record import HEADINGS, cells, record, this_machine
from benchmarks.speed.subject import Subject, measure_pairs
from benchmarks.speed.subjects import SUBJECTS

_LEAST_PAIRS = 5


def main() -> int:
    """Returns 1 if a goal was not reached."""
    arguments = _parse_arguments()
    subjects = _chosen_subjects(arguments.only)
    if arguments.list:
        for subject in subjects:
            print(f"{subject.name}: at least {subject.goal:g} times the peer")
            print(f"  project: {subject.project.label}")
            print(f"  peer:    {subject.peer.label}")
        return 0
    command = f"python -m benchmarks.run {shlex.join(sys.argv[1:])}".strip()
    machine = this_machine() if arguments.record else {}
    console = Console()
    table = Table(*HEADINGS)
    num_missed = 0
    for subject in subjects:
        with console.status(subject.name) as status:
            result = measure_pairs(subject, arguments.pairs, status.update)
        row = cells(subject.name, result)
        num_missed += result["median_ratio"] < subject.goal
        console.print(" | ".join(row), soft_wrap=True)
        table.add_row(*row)
        if arguments.record:
            record(subject.name, {"command": command, **result}, machine)
    console.print(table)
    return int(num_missed > 0)


def _chosen_subjects(only: str) -> Sequence[Subject]:
    """Returns the subjects of --only, or ends with exit code 2 if one is unknown."""
    by_name = {subject.name: subject for subject in SUBJECTS}
    names = only.split(",") if only else list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        known = ", ".join(by_name)
        print(f"--only={','.join(unknown)} is unknown: use {known}.", file=sys.stderr)
        sys.exit(2)
    return [by_name[name] for name in names]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--pairs", type=int, default=_LEAST_PAIRS, help="of each")
    parser.add_argument("--record", action="store_true", help="write into results/")
    parser.add_argument("--list", action="store_true", help="only list the subjects")
    arguments = parser.parse_args()
    if arguments.pairs < 1 or (arguments.record and arguments.pairs < _LEAST_PAIRS):
        parser.error(
            f"--pairs={arguments.pairs} is too few: use 1 or more, and {_LEAST_PAIRS} "
            "or more with --record."
        )
    return arguments


if __name__ == "__main__":
    sys.exit(main())
