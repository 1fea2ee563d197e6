"""A fault with the promise that is made for it, and repeated tries of it."""

import dataclasses
import math
import pathlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A fault, and the promise that holds when it happens.

    Attributes:
      name: Words joined by dashes.
      promise: Condition that must hold, in a line.
      tries: Number of tries unless `--tries` gives another.
      attempt: Makes the fault happen once, at random moments from the generator, in an
        empty folder. Returns the seconds that the promise limits, or None if it limits
        no time. Raises AssertionError, whose first line is reported, if the promise
        was broken.
      most_seconds: Limit of these seconds on an idle machine.
    """

    name: str
    promise: str
    tries: int
    attempt: Callable[[random.Random, pathlib.Path], float | None]
    most_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The outcome of the tries of a scenario.

    Attributes:
      scenario: The scenario.
      tries: Number of tries made.
      failures: A line for each broken promise, with the seed that repeats it.
      worst_seconds: Longest of the limited times; None if no time is limited.
      minutes: Duration of all tries together.
    """

    scenario: Scenario
    tries: int
    failures: Sequence[str]
    worst_seconds: float | None
    minutes: float


def run_scenario(
    scenario: Scenario,
    tries: int,
    seed: int,
    show: Callable[[int, Sequence[str]], None] = lambda number, failures: None,
    most_seconds: float = math.inf,
) -> Row:
    """Tries a scenario several times, each time with another seed.

    Args:
      scenario: The scenario.
      tries: Largest number of tries.
      seed: Seed of the first try; each further one has the next.
      show: Called before each try with its number, from 1, and the failures so far.
      most_seconds: Seconds after which no further try begins.
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
            seconds = _attempt(scenario, number)
        except AssertionError as error:
            failures.append(f"--seed={number}: {next(_lines(error), 'no message')}")
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


def assert_promise_holds(scenario: Scenario, seed: int) -> None:
    """Tries a scenario once, on a machine that may be busy with other work.

    Raises:
      AssertionError: The promise was broken, or took far longer than on an idle
        machine.
    """
    seconds, limit = _attempt(scenario, seed), scenario.most_seconds
    if seconds is not None and limit is not None:
        assert seconds <= 2 * limit + 5, f"took {seconds:.1f} s"


def _attempt(scenario: Scenario, seed: int) -> float | None:
    """Tries a scenario once, and removes the files that the try leaves.

    Returns:
      The seconds that the promise limits; None if it limits no time.

    Raises:
      AssertionError: The promise was broken.
    """
    with tempfile.TemporaryDirectory(prefix=f"{scenario.name}-") as folder:
        return scenario.attempt(random.Random(seed), pathlib.Path(folder))


def _lines(error: AssertionError) -> Iterator[str]:
    return (line.strip() for line in str(error).splitlines() if line.strip())
