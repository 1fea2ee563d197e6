"""Tests of the benchmark of predictions: errors, its table, and its continuation."""

import dataclasses
import json
import pathlib

import pytest

from benchmarks import growth
from benchmarks.growth import Point, summary_of, table_of
from tests import processes
from tests.processes import run_module

POINT = Point(
    strategy="ring",
    replicas=8,
    width=64,
    bandwidth_mbit=100,
    is_fitted=False,
    predicted_seconds=1.1,
    measured_seconds=1.0,
)


def point(strategy: str, predicted: float, measured: float, **changes: object) -> Point:
    changes = {"predicted_seconds": predicted, "measured_seconds": measured} | changes
    return dataclasses.replace(POINT, strategy=strategy, **changes)  # type: ignore[arg-type]


def test_errors_are_of_points_that_were_not_fitted() -> None:
    points = [
        point("ring", 1.1, 1.0),
        point("servers", 1.5, 2.0),
        # The model was fitted to these points, so their small errors do not count.
        point("ring", 1.0, 1.0, replicas=2, is_fitted=True),
        point("servers", 3.0, 3.0, replicas=2, is_fitted=True),
        point("servers", 2.02, 2.0, replicas=3),
        # Only this pair has a wrong order. The point of width 512 has no pair.
        point("ring", 3.0, 2.5, replicas=3),
        point("third", 2.5, 2.6, replicas=3),
        point("third", 1.0, 1.0, replicas=3, width=512),
    ]
    found = summary_of(points)
    assert found["points"] == 6
    # The errors are 0, 1, 4, 10, 20 and 25 %.
    assert found["median_error"] == pytest.approx((10 + 100 * (1 - 2.5 / 2.6)) / 200)
    assert found["largest_error"] == pytest.approx(0.25)
    assert found["pairs"] == 4
    assert found["right_order"] == pytest.approx(3 / 4)


def test_without_points_to_predict_there_are_no_errors() -> None:
    found = summary_of([dataclasses.replace(POINT, is_fitted=True)])
    assert (found["points"], found["median_error"], found["pairs"]) == (0, None, 0)


def test_the_table_has_a_row_for_each_strategy_and_bandwidth() -> None:
    points = [
        point("ring", 1.1, 1.0),
        point("ring", 0.8, 1.0, width=512),
        point("ring", 1.0, 1.0, bandwidth_mbit=0, is_fitted=True),
    ]
    _, _, *rows = table_of(points).splitlines()
    assert rows == [
        "| ring | 100 Mbit/s | 2 | 15% | 20% | - | 8 replicas, width 512: -20% |",
        "| ring | 0 Mbit/s | 0 | - | - | - | - |",
        "| all |  | 2 | 15% | 20% | - | 8 replicas, width 512: -20% |",
    ]


def test_a_record_replaces_the_table_of_the_document(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "prediction.md"
    monkeypatch.setattr(growth, "RECORD", tmp_path / "growth.json")
    monkeypatch.setattr(growth, "DOCUMENT", document)
    text = processes.ROOT.joinpath("docs/prediction.md").read_text(encoding="utf-8")
    document.write_text(text, encoding="utf-8")
    for date in ("2030-01-01", "2030-01-02"):
        growth._record({"command": "the command", "date": date}, f"| of {date} |")
    before, _, after = text.partition("<!-- growth: begin -->")
    _, _, after = after.partition("<!-- growth: end -->")
    assert document.read_text(encoding="utf-8") == (
        f"{before}<!-- growth: begin -->\n`the command`, 2030-01-02; 0 Mbit/s is "
        f"loopback:\n\n| of 2030-01-02 |\n<!-- growth: end -->{after}"
    )


@pytest.mark.parametrize("argument", ["--replicas=2,x", "--widths=", "--bandwidths=-1"])
def test_what_is_no_list_of_numbers_is_refused(
    argument: str, tmp_path: pathlib.Path
) -> None:
    done = run_module("benchmarks.growth", argument, f"--folder={tmp_path / 'runs'}")
    assert done.returncode == 2
    assert f"{argument} is not accepted: use numbers like" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_it_predicts_first_and_continues(tmp_path: pathlib.Path) -> None:
    arguments = (
        *("--strategies=mirrored", "--replicas=2,6", "--widths=64"),
        f"--folder={tmp_path}",
    )
    done = run_module("benchmarks.growth", *arguments)
    assert done.returncode == 0, done.stderr
    assert "2 points, " in done.stdout
    predicted, found = (
        json.loads((tmp_path / name).read_text("utf-8"))
        for name in ("predicted.json", "growth.json")
    )
    for before, after in zip(predicted["points"], found["points"], strict=True):
        assert before["measured_seconds"] == 0 < after["measured_seconds"]
        assert before["predicted_seconds"] == after["predicted_seconds"]
        assert not before["is_fitted"]
    assert found["summary"]["points"] == 2
    # Without this file the benchmark looks interrupted in its last run.
    (tmp_path / "mirrored-6-of-64-width-64" / "result.json").unlink()
    done = run_module("benchmarks.growth", *arguments)
    assert done.returncode == 0, done.stderr
    started = [line.split()[1] for line in done.stdout.splitlines() if ":" in line[:3]]
    assert started == ["mirrored-6-of-64-width-64"]
    again = json.loads((tmp_path / "growth.json").read_text("utf-8"))
    assert again["points"][0] == found["points"][0]
