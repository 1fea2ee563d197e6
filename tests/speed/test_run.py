"""How the project is measured beside its peers."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess

import pytest

from benchmarks.speed import report
from benchmarks.speed.sides import Measured, Peer, Project
from benchmarks.speed.subject import Outcome, Subject, compared
from benchmarks.speed.subjects import SUBJECTS
from tests.processes import ROOT, run_module


@dataclasses.dataclass
class Scripted:
    """A side whose runs are known."""

    label: str
    speeds: list[float]
    order: list[str]

    def measure(self, folder: pathlib.Path) -> Measured:
        assert list(folder.iterdir()) == []
        (folder / "left").touch()
        self.order.append(self.label)
        return Measured(
            examples_per_second=self.speeds.pop(0),
            first_step_seconds=1.0,
            wall_seconds=2.0,
            peak_memory_mib=100.0,
        )


def scripted(goal: float) -> tuple[Subject, list[str]]:
    order: list[str] = []
    ours = Scripted("ours", [1.0, 20.0, 30.0, 60.0], order)
    theirs = Scripted("theirs", [100.0, 10.0, 10.0, 20.0], order)
    return Subject(name="made-up", project=ours, peer=theirs, goal=goal), order


def test_pairs_alternate_and_the_first_is_discarded() -> None:
    subject, order = scripted(goal=3.0)
    said: list[str] = []
    outcome = compared(subject, 3, said.append)
    assert outcome.ratios == [2.0, 3.0, 3.0]
    assert outcome.median_ratio == 3.0
    assert outcome.is_reached
    assert order == ["theirs", "ours", "ours", "theirs"] * 2
    assert said[0] == "made-up: warming up"
    assert said[-1] == "made-up: pair 3 of 3"


def test_a_page_says_what_was_measured_and_what_is_short(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    subject, _ = scripted(goal=3.5)
    outcome: Outcome = compared(subject, 3, lambda line: None)
    page = report.written(outcome, "the command")
    text = page.read_text(encoding="utf-8")
    assert page.name.startswith("made-up_")
    assert "| 3.00 (short) | 2.00 to 3.00 | 3.5 |" in text
    assert "`the command`" in text
    assert "`ours`" in text
    found = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert found["ratios"] == [2.0, 3.0, 3.0]
    assert [run["examples_per_second"] for run in found["peer"]] == [10.0, 10.0, 20.0]


def test_subjects_have_names_of_their_own_and_are_listed() -> None:
    names = [subject.name for subject in SUBJECTS]
    assert len(set(names)) == len(names)
    listed = command("--list")
    assert [
        line.partition(":")[0] for line in listed.stdout.splitlines() if line[0] != " "
    ] == names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only=nothing"], "--only=nothing is unknown: use "),
        (["--pairs=4", "--record"], "--pairs=4 is too few: use 1 or more, and 5 "),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_project_and_a_peer_are_really_run(tmp_path: pathlib.Path) -> None:
    size = ("--global_batch_size=64",)
    data = ("--model=mlp", "--dataset=synthetic", "--set=data.input_shape=5")
    sides: dict[str, Project | Peer] = {
        "project": Project((*size, *data, "--train_steps=60", "--steps_per_loop=10")),
        "peer": Peer(
            "tensorflow_loop",
            (*size, "--work=mlp", "--steps=60", "--steps_per_call=10"),
        ),
    }
    for name, side in sides.items():
        folder = tmp_path / name
        folder.mkdir()
        measured = side.measure(folder)
        assert measured.examples_per_second > 64
        assert measured.first_step_seconds is not None
        assert 0.5 < measured.first_step_seconds < measured.wall_seconds
        assert measured.peak_memory_mib > 100
        assert {"tensorflow", "keras"} <= set(measured.versions)


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("script", "cluster"),
    [
        ("keras_fit", ()),
        ("tensorflow_loop", (("worker", 2),)),
        ("coordinator_loop", (("chief", 1), ("worker", 2), ("ps", 1))),
    ],
)
def test_every_other_peer_runs(
    script: str, cluster: tuple[tuple[str, int], ...], tmp_path: pathlib.Path
) -> None:
    flags = ("--work=mlp", "--global_batch_size=64", "--steps=150")
    measured = Peer(script, flags, cluster=cluster).measure(tmp_path)
    assert measured.examples_per_second > 64


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("benchmarks.run", *arguments)


def test_the_figures_of_the_document_are_those_of_the_results() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    begin, end = "<!-- results: begin", "<!-- results: end -->"
    shown = text.partition(begin)[2].partition("-->\n")[2].partition(end)[0].strip()
    assert shown == report.overview(ROOT / "benchmarks" / "results")
    assert shown.count("\n") > 2


def test_the_overview_has_the_newest_of_each_subject(tmp_path: pathlib.Path) -> None:
    for date, ratio in (("2026-01-02", 3.0), ("2026-01-01", 2.0)):
        content = {
            "subject": "one",
            "median_ratio": ratio,
            "ratios": [1.0, ratio, 4.0],
            "goal": 2.5,
        }
        (tmp_path / f"one_here_{date}.json").write_text(json.dumps(content))
    (tmp_path / "other_here_2026-01-01.json").write_text("{}")
    *_, row = report.overview(tmp_path).splitlines()
    assert row == (
        "| [one](../benchmarks/results/one_here_2026-01-02.md) | 3.00 | 1.00 to 4.00 "
        "| 2.5 | yes |"
    )
