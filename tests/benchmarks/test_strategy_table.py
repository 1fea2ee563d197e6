"""Tests of the comparison of all strategies: its arms, its record and its page."""

import json
import pathlib

import pytest

from benchmarks import strategy_page, strategy_table
from strategies import registry
from tests.processes import ROOT, run_module


def test_every_strategy_has_an_arm_for_each_of_its_ways_to_update() -> None:
    expected = {
        (name, update)
        for name in registry.names()
        for update in registry.traits(name).updates or (None,)
    }
    found = set()
    for flags in strategy_table.arms_of().values():
        given = dict(flag.removeprefix("--").split("=") for flag in flags)
        found.add((given["strategy"], given.get("update")))
    assert found == expected


def test_the_page_shows_the_recorded_results() -> None:
    recorded = json.loads(strategy_table.RECORD.read_text(encoding="utf-8"))
    assert strategy_page.PAGE.read_text("utf-8") == strategy_page.page(recorded)
    assert list(recorded["subjects"]) == [s.name for s in strategy_table.MODELS]
    for subject in strategy_table.MODELS:
        kept = recorded["subjects"][subject.name]
        names = {arm["name"] for arm in kept["arms"]}
        assert names <= set(strategy_table.arms_of())
        # Every arm except the control has a verdict on speed.
        speeds = [c for c in kept["comparisons"] if c["metric"] == strategy_page.SPEED]
        assert {c["arm"] for c in speeds} == names - {kept["control"]}
        assert all(c["verdict"] for c in speeds)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
def test_a_table_of_short_runs(tmp_path: pathlib.Path) -> None:
    (dense, *_) = strategy_table.MODELS
    words = strategy_table.command_of(dense)[3:]
    short = ("--seeds=1", "--until=seeds", "--train_steps=2", f"--run_dir={tmp_path}")
    kept = [w for w in words if not w.startswith(("--seeds=", "--until="))]
    done = run_module("trainers.main", *kept, *short)
    assert done.returncode == 0, done.stderr
    comparison = json.loads((tmp_path / "comparison.json").read_text("utf-8"))
    summary = {
        "model": dense.model,
        "command": "the command",
        **strategy_table.summary_of(comparison),
    }
    recorded = {"machine": {"name": "here"}, "subjects": {dense.name: summary}}
    page = strategy_page.page(recorded)
    for name in strategy_table.arms_of():
        assert f"| `{name}` | 1 |" in page
    assert summary["control"] == "one_device"
    # Each of two workers in a ring sends its gradients of 301,066 numbers of 4 bytes.
    assert "| 1.20 MB |" in page
    strategy_page.draw(recorded, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_of_the_makefile() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m benchmarks.strategy_table\n" in text
