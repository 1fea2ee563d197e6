"""Measures the project beside what a user would pick instead, in one run.

  python -m benchmarks.run                       # everything, about an hour
  python -m benchmarks.run --only=NAME,...       # --list has the names
  python -m benchmarks.run --only=NAME --pairs=9 --record

Each subject is a number of pairs of runs, one after the other, after one pair that is
discarded. --record writes results/<subject>_<hardware>_<date>.md and .json. Exit code 1
if a ratio is short of its goal.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from rich.console import Console

from benchmarks.choice import chosen, table_of
from benchmarks.speed.report import HEADINGS, cells, written
from benchmarks.speed.subject import compared
from benchmarks.speed.subjects import SUBJECTS

_LEAST_PAIRS = 5


def main() -> int:
    """Returns 1 if a goal was not reached."""
    arguments = _parsed()
    subjects = chosen(arguments.only, {each.name: each for each in SUBJECTS})
    if arguments.list:
        for subject in subjects:
            print(f"{subject.name}: at least {subject.goal:g} times the peer")
            print(f"  project: {subject.project.label}")
            print(f"  peer:    {subject.peer.label}")
        return 0
    command = f"python -m benchmarks.run {shlex.join(sys.argv[1:])}".strip()
    console = Console()
    outcomes = []
    for subject in subjects:
        with console.status(subject.name) as status:
            outcomes.append(compared(subject, arguments.pairs, status.update))
        console.print(" | ".join(cells(outcomes[-1])), soft_wrap=True)
        if arguments.record:
            written(outcomes[-1], command)
    console.print(table_of(HEADINGS, [cells(outcome) for outcome in outcomes]))
    return int(not all(outcome.is_reached for outcome in outcomes))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--pairs", type=int, default=_LEAST_PAIRS, help="of each")
    parser.add_argument("--record", action="store_true", help="write into results/")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    arguments = parser.parse_args()
    if arguments.pairs < 1 or (arguments.record and arguments.pairs < _LEAST_PAIRS):
        parser.error(
            f"--pairs={arguments.pairs} is too few: use 1 or more, and {_LEAST_PAIRS} "
            "or more with --record."
        )
    return arguments


if __name__ == "__main__":
    sys.exit(main())
