"""How tries of a scenario are counted, and the command that makes them."""

from __future__ import annotations

import pathlib
import random
import subprocess
import time

import pytest

from benchmarks.faults.scenario import Scenario, scenarios, tried
from tests.processes import run_module


def test_broken_promises_and_times_over_the_limit_are_failures() -> None:
    seen: list[float] = []

    def attempt(chosen: random.Random, folder: pathlib.Path) -> float:
        assert list(folder.iterdir()) == []
        (folder / "left").touch()
        seen.append(chosen.random())
        assert len(seen) != 2, "lost\nthe rest"
        return 4.0 if len(seen) == 3 else 1.0

    scenario = Scenario(
        name="made-up", promise="none", tries=9, attempt=attempt, most_seconds=3.0
    )
    row = tried(scenario, 4, seed=10)
    assert row.failures == ["--seed=11: lost", "--seed=12: took 4.0 s"]
    assert (row.tries, row.worst_seconds) == (4, 4.0)
    assert seen[0] == random.Random(10).random()
    assert len(set(seen)) == 4


def test_tries_end_when_their_time_is_over() -> None:
    scenario = Scenario(
        name="made-up", promise="none", tries=9, attempt=lambda *_: time.sleep(0.01)
    )
    row = tried(scenario, 1_000_000, seed=0, most_seconds=0.1)
    assert 1 < row.tries < 1_000_000
    assert row.minutes >= 0.1 / 60


def test_a_scenario_may_limit_no_time() -> None:
    scenario = Scenario(
        name="made-up", promise="none", tries=1, attempt=lambda *_: None
    )
    row = tried(scenario, 2, seed=0)
    assert (row.failures, row.worst_seconds) == ([], None)


def test_another_error_than_a_broken_promise_is_not_counted() -> None:
    def attempt(chosen: random.Random, folder: pathlib.Path) -> float:
        raise KeyError("a bug of the scenario")

    scenario = Scenario(name="made-up", promise="none", tries=1, attempt=attempt)
    with pytest.raises(KeyError):
        tried(scenario, 1, seed=0)


def test_every_scenario_has_a_name_of_its_own_and_is_listed() -> None:
    names = [scenario.name for scenario in scenarios()]
    assert len(set(names)) == len(names)
    listed = command("--list")
    assert [line.partition(":")[0] for line in listed.stdout.splitlines()] == names


def test_an_unknown_name_is_refused() -> None:
    done = command("--only=no-such-fault")
    assert done.returncode == 2
    assert done.stderr.startswith("--only=no-such-fault is unknown: use ")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("benchmarks.faults", *arguments)
