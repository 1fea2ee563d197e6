"""Tests of measurements of the project beside its peers, and of their records."""

import dataclasses
import json
import pathlib
import re
import subprocess
import types
from typing import Any

import numpy as np
import pytest

from benchmarks import record
from benchmarks.peers import work
from benchmarks.speed import sides
from benchmarks.speed.sides import Measured, Peer, Project, Side
from benchmarks.speed.subject import Subject, measure_pairs
from benchmarks.speed.subjects import SUBJECTS
from strategies.common.types import SummaryLevel
from tests.markers import further
from tests.processes import run_module
from trainers.reporting.metrics import ThroughputMeter


@dataclasses.dataclass
class Scripted:
    """A side of a comparison whose speeds the test sets."""

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
    result = measure_pairs(subject, 3, said.append)
    assert result["ratios"] == [2.0, 3.0, 3.0]
    assert result["median_ratio"] == 3.0
    assert [run["examples_per_second"] for run in result["peer"]] == [10.0, 10.0, 20.0]
    assert order == ["theirs", "ours", "ours", "theirs"] * 2
    assert said[0] == "made-up: warming up"
    assert said[-1] == "made-up: pair 3 of 3"


def test_peers_are_measured_as_the_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    stopwatch, meter = work.Stopwatch(global_batch_size=64), ThroughputMeter()
    random = np.random.default_rng(0)
    # Rare slow steps, which most calls do not have.
    for seconds in 1e-3 + 0.06 * (random.random(3_000) < 1 / 150):
        stopwatch.begin()
        now += seconds
        stopwatch.end(1)
        results = types.SimpleNamespace(
            step_seconds=np.array([seconds]),
            input_seconds=np.zeros(1),
            sums={"examples": np.array([64])},
            workers=None,
        )
        event: Any = types.SimpleNamespace(
            results=results, call_seconds=seconds, observed=SummaryLevel.NONE
        )
        meter(event)
    stopwatch.report()
    found = json.loads(capsys.readouterr().out)["examples_per_second"]
    # A window of 0.5 s may end a step of 1 ms later, by rounding.
    assert found == pytest.approx(meter.summary()["examples_per_second"], rel=4e-3)
    assert found < 0.8 * 64_000


MACHINE = {"name": "2x Intel(R) Xeon(R) Processor", "cpu_cores": 2}


def recorded(folder: pathlib.Path, name: str, goal: float) -> pathlib.Path:
    """Records three pairs of a subject, whose median ratio is 3."""
    document = folder / "performance.md"
    if not document.exists():
        document.write_text("Before\n<!-- results: begin -->\n<!-- results: end -->\n")
    subject, _ = scripted(goal)
    result = measure_pairs(subject, 3, lambda line: None)
    result = {"command": "the command", **result}
    return record.record(name, result, MACHINE, folder, document)


def test_a_record_replaces_its_subject_alone_and_keeps_every_run(
    tmp_path: pathlib.Path,
) -> None:
    for name, goal in (("one", 1.0), ("other", 2.0), ("one", 3.5)):
        path = recorded(tmp_path, name, goal)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_2x-xeon\.json", path.name)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["machine"] == MACHINE
    assert path.name.startswith(content["date"])
    found = content["subjects"]
    assert {name: one["goal"] for name, one in found.items()} == {
        "one": 3.5,
        "other": 2.0,
    }
    assert [run["examples_per_second"] for run in found["one"]["project"]] == [
        *(20.0, 30.0, 60.0),
    ]
    assert {file.name for file in tmp_path.iterdir()} == {
        *(path.name, "README.md", "performance.md")
    }


def test_a_record_updates_the_page_and_the_document(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path, "one", 3.5)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| one | 3.00 | 2.00 to 3.00 | 3.5 | no | 0.03k/s | 0.01k/s |" in page
    assert "- project: `ours`\n- peer: `theirs`\n- `the command` on 2x Intel" in page
    assert f"({path.name})" in page
    document = (tmp_path / "performance.md").read_text(encoding="utf-8")
    assert document.startswith("Before\n<!-- results: begin -->\n| subject | ratio |")
    assert document.splitlines()[-2:] == [
        "| [one](../benchmarks/results/README.md#one) "
        f"| 3.00 | 2.00 to 3.00 | 3.5 | no | {MACHINE['name']} |",
        "<!-- results: end -->",
    ]


def test_the_newest_result_of_a_subject_is_shown(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path, "one", 3.5)
    text = path.read_text(encoding="utf-8").replace('"goal": 3.5', '"goal": 1.5')
    for year in (1999, 2999):
        (tmp_path / f"{year}-01-01_2x-xeon.json").write_text(
            text if year == 2999 else text.replace("1.5", "9.5")
        )
    *_, row = record.table_of_document(tmp_path).splitlines()
    assert "| 3.00 | 2.00 to 3.00 | 1.5 | yes |" in row


def test_the_pages_are_those_of_the_recorded_results() -> None:
    """`python -m benchmarks.record` writes the pages again."""
    page = (record.RESULTS / "README.md").read_text(encoding="utf-8")
    assert page == record.page()
    document = record.DOCUMENT.read_text(encoding="utf-8")
    assert record.around_table(document)[1] == record.table_of_document()
    assert page.count("\n## ") > len(SUBJECTS)


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


SIZE = ("--global_batch_size=64",)
DATA = (
    *("--model=mlp", "--dataset=synthetic", "--set=data.input_shape=5"),
    "--eval_every_steps=none",
)
SIDES: dict[str, Side] = {
    "project": Project((*SIZE, *DATA, "--train_steps=60", "--steps_per_loop=10")),
    "peer": Peer(
        "tensorflow_loop", (*SIZE, "--work=mlp", "--steps=60", "--steps_per_call=10")
    ),
}


# Peers are programs of the benchmarks alone.
@pytest.mark.parametrize("side", ["project", further("peer")])
def test_the_project_and_a_peer_are_really_run(
    side: str, tmp_path: pathlib.Path
) -> None:
    measured = SIDES[side].measure(tmp_path)
    assert measured.examples_per_second > 64
    assert measured.first_step_seconds is not None
    assert 0.5 < measured.first_step_seconds < measured.wall_seconds
    assert measured.peak_memory_mib > 100
    assert {"tensorflow", "keras"} <= set(measured.versions)


@pytest.mark.parametrize(
    ("second", "said"),
    [("echo why >&2; exit 3", "ended with 3: why"), ("exec sleep 60", "did not end")],
)
def test_a_worker_that_fails_or_hangs_is_reported(
    second: str,
    said: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = tmp_path / "worker.sh"
    is_second = """case "$TF_CONFIG" in *'"index": 1'*)"""
    worker.write_text(f"#!/bin/sh\n{is_second} {second};; esac\nexec sleep 60\n")
    worker.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(worker))
    if "did not" in said:
        monkeypatch.setattr(sides, "_PATIENCE_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=said):
        Peer("any", (), num_workers=2).measure(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("script", "num_workers"), [("keras_fit", 0), ("tensorflow_loop", 2)]
)
def test_every_other_peer_runs(
    script: str, num_workers: int, tmp_path: pathlib.Path
) -> None:
    flags = ("--work=mlp", "--global_batch_size=64", "--steps=150")
    measured = Peer(script, flags, num_workers=num_workers).measure(tmp_path)
    assert measured.examples_per_second > 64


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("benchmarks.run", *arguments)
