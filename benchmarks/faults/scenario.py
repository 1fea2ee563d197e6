"""What a fault is, and how tries of it are counted."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pathlib
import pkgutil
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One way in which things go wrong, and what is promised then.

    Attributes:
      name: words joined by dashes.
      promise: what has to hold, in a line.
      tries: how often it is tried where nothing else is asked for.
      attempt: makes it happen once, with random moments from the generator, in an empty
        folder. Returns the seconds that the promise limits, or None if it limits no
        time. Raises AssertionError, whose first line says it, if a promise was broken.
      most_seconds: the limit, on a machine that does nothing else.
    """

    name: str
    promise: str
    tries: int
    attempt: Callable[[random.Random, pathlib.Path], float | None]
    most_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What tries of a scenario came to.

    Attributes:
      scenario: which.
      tries: that were made.
      failures: a line for each promise broken, with the seed that repeats it.
      worst_seconds: the longest of the times that are limited; None if none is.
      minutes: that all tries took together.
    """

    scenario: Scenario
    tries: int
    failures: Sequence[str]
    worst_seconds: float | None
    minutes: float


def scenarios() -> Sequence[Scenario]:
    """Of all modules of this folder, in the order of their names."""
    folder = pathlib.Path(__file__).parent
    modules = sorted(module.name for module in pkgutil.iter_modules([str(folder)]))
    found: list[Scenario] = []
    for name in modules:
        # Running it as a program is what importing the entry point would do.
        if name != "__main__":
            module = importlib.import_module(f"benchmarks.faults.{name}")
            found += getattr(module, "SCENARIOS", ())
    return found


def tried(
    scenario: Scenario,
    tries: int,
    seed: int,
    show: Callable[[int, Sequence[str]], None] = lambda number, failures: None,
    most_seconds: float = math.inf,
) -> Row:
    """Makes it happen a number of times, each try with a seed of its own.

    Args:
      scenario: what to try.
      tries: how often at most.
      seed: of the first try; each further one has the next.
      show: is told before each try its number, from 1, and the failures so far.
      most_seconds: after which no further try begins.
    """
    failures: list[str] = []
    worst = None
    made, began = 0, time.monotonic()
    for number in range(seed, seed + tries):
        if time.monotonic() - began > most_seconds:
            break
        made += 1
        show(made, failures)
        try:
            seconds = assert_promise_holds(scenario, number)
        except AssertionError as error:
            failures.append(f"--seed={number}: {next(_lines(error), 'no words')}")
            continue
        if seconds is not None:
            worst = max(seconds, worst or 0.0)
            if scenario.most_seconds is not None and seconds > scenario.most_seconds:
                failures.append(f"--seed={number}: took {seconds:.1f} s")
    return Row(
        scenario=scenario,
        tries=made,
        failures=failures,
        worst_seconds=worst,
        minutes=(time.monotonic() - began) / 60,
    )


def assert_promise_holds(scenario: Scenario, seed: int) -> float | None:
    """One try. What it left behind is removed.

    Raises:
      AssertionError: a promise was broken.
    """
    with tempfile.TemporaryDirectory(prefix=f"{scenario.name}-") as folder:
        return scenario.attempt(random.Random(seed), pathlib.Path(folder))


def _lines(error: AssertionError) -> Iterator[str]:
    return (line.strip() for line in str(error).splitlines() if line.strip())
