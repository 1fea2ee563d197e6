"""Tests of the tries of a scenario, of their command, and of the recorded tables."""

import json
import pathlib
import random
import re
import subprocess
import time

import pytest

from tests.fault_injection import record
from tests.fault_injection.scenario import Scenario, run_scenario
from tests.fault_injection.scenarios import all_scenarios
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
    row = run_scenario(scenario, 4, seed=10)
    assert row.failures == ["--seed=11: lost", "--seed=12: took 4.0 s"]
    assert (row.tries, row.worst_seconds) == (4, 4.0)
    assert seen[0] == random.Random(10).random()
    assert len(set(seen)) == 4


def test_tries_end_when_their_time_is_over() -> None:
    scenario = Scenario(
        name="made-up", promise="none", tries=9, attempt=lambda *_: time.sleep(0.01)
    )
    row = run_scenario(scenario, 1_000_000, seed=0, most_seconds=0.1)
    assert 1 < row.tries < 1_000_000
    assert row.minutes >= 0.1 / 60


def test_a_scenario_may_limit_no_time() -> None:
    scenario = Scenario(
        name="made-up", promise="none", tries=1, attempt=lambda *_: None
    )
    row = run_scenario(scenario, 2, seed=0)
    assert (row.failures, row.worst_seconds) == ([], None)


def test_another_error_than_a_broken_promise_is_not_counted() -> None:
    def attempt(chosen: random.Random, folder: pathlib.Path) -> float:
        raise KeyError("a bug of the scenario")

    scenario = Scenario(name="made-up", promise="none", tries=1, attempt=attempt)
    with pytest.raises(KeyError):
        run_scenario(scenario, 1, seed=0)


def test_every_scenario_has_a_name_of_its_own_and_is_listed() -> None:
    names = [scenario.name for scenario in all_scenarios()]
    assert len(set(names)) == len(names)
    listed = command("--list")
    assert [line.partition(":")[0] for line in listed.stdout.splitlines()] == names


def test_an_unknown_name_is_refused() -> None:
    done = command("--only=no-such-fault")
    assert done.returncode == 2
    assert done.stderr.startswith("--only=no-such-fault is unknown: use ")


def test_recorded_rows_replace_those_of_the_same_scenario(
    tmp_path: pathlib.Path,
) -> None:
    for name, tries in (("one", 1), ("other", 1), ("one", 3)):
        scenario = Scenario(
            name=name, promise="none", tries=9, attempt=lambda *_: 0.5, most_seconds=2
        )
        row = run_scenario(scenario, tries, seed=7)
        table = record.record(row, 7, "2x Some (R) CPU", tmp_path)
    assert table.name == "2x-some-r-cpu.md"
    rows = [line for line in table.read_text().splitlines() if line.startswith("| o")]
    assert [row.split(" | ")[:6] for row in rows] == [
        ["| one", "3", "0", "0.5 s", "2 s", "as promised"],
        ["| other", "1", "0", "0.5 s", "2 s", "as promised"],
    ]
    found = json.loads(table.with_suffix(".json").read_text())
    assert found["one"]["command"] == "--only=one --tries=3 --seed=7"


def test_the_recorded_tables_show_the_recorded_rows() -> None:
    tables = list(record.RESULTS.glob("*.md"))
    assert tables
    for table in tables:
        text = table.read_text(encoding="utf-8")
        (machine,) = re.findall(r"--record` on (.*)\. Each row", text)
        rows = json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))
        assert text == record.page(machine, rows)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("tests.fault_injection", *arguments)
