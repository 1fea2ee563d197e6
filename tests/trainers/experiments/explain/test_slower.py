"""The section of a report that says why an arm is slower."""

from __future__ import annotations

import json
import pathlib

from tests.trainers.experiments.compare.run_factory import make_arm
from tests.trainers.experiments.explain.test_breakdown import NUM_STEPS, task_of
from trainers.main import main

SPEEDS = (1000.0, 1010.0, 990.0)
SLOW = (500.0, 505.0, 495.0)


def pages_of(folder: pathlib.Path, one: str, two: str) -> list[str]:
    out = folder / "out"
    assert (
        main(["trainers", "--mode=compare", f"--runs={one},{two}", f"--run_dir={out}"])
        == 0
    )
    return [(out / name).read_text("utf-8") for name in ("report.html", "report.md")]


def test_the_kind_that_takes_longer_is_named(tmp_path: pathlib.Path) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SLOW, strategy="tower")
    for path in (tmp_path / "two").glob("*/result.json"):
        result = json.loads(path.read_text())
        result["seconds"] |= {"input": 0.9, "train": 1.9}
        path.write_text(json.dumps(result))
    for page in pages_of(tmp_path, one, two):
        assert "Why is two slower?" in page
        assert "Most of the difference to one is input" in page
        # The control is not slower than itself.
        assert "Why is one slower?" not in page


def test_phases_of_steps_are_shown_where_all_runs_have_them(
    tmp_path: pathlib.Path,
) -> None:
    arms = [
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", SLOW, strategy="tower"),
    ]
    for arm, exchange in (("one", 0.01), ("two", 0.05)):
        for run in (tmp_path / arm).iterdir():
            (run / "step_phases").mkdir()
            task = task_of("chief-0", (0.0, [0.05], exchange, 0.01))
            task["wall_seconds"] = NUM_STEPS * (0.06 + exchange)
            (run / "step_phases" / "chief-0.json").write_text(json.dumps(task))
    for page in pages_of(tmp_path, *arms):
        assert "Most of the difference to one is all-reduce, messages" in page


def test_nothing_is_said_of_arms_that_are_faster(tmp_path: pathlib.Path) -> None:
    one = make_arm(tmp_path / "one", SLOW)
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower")
    for page in pages_of(tmp_path, one, two):
        assert "slower?" not in page


def test_nothing_is_said_where_the_verdict_is_none(tmp_path: pathlib.Path) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", (300.0, 1900.0, 700.0), strategy="tower")
    for page in pages_of(tmp_path, one, two):
        assert "slower?" not in page


def test_times_of_interrupted_runs_explain_nothing(tmp_path: pathlib.Path) -> None:
    """The last process has trained a part of the steps."""
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SLOW, strategy="tower")
    for seed in range(2):
        path = tmp_path / "two" / f"seed-{seed}" / "result.json"
        result = json.loads(path.read_text())
        result["seconds"]["train"] = 0.2
        path.write_text(json.dumps({**result, "restarts": 1}))
    _, page = pages_of(tmp_path, one, two)
    # 0.9 s of 20 steps.
    assert "training without input 45 in place of 45 ms a step" in page


def test_input_that_one_arm_does_not_know_is_training(tmp_path: pathlib.Path) -> None:
    """Keras's `fit` waits for its input within its steps."""
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SLOW, strategy="tower")
    for arm, seconds in (
        ("one", {"input": 0.0, "train": 1.0}),
        ("two", {"input": 0.9, "train": 1.9}),
    ):
        for path in (tmp_path / arm).glob("*/result.json"):
            result = json.loads(path.read_text())
            result["seconds"] |= seconds
            path.write_text(json.dumps(result))
    for page in pages_of(tmp_path, one, two):
        assert "Most of the difference to one is training" in page
        assert "without input" not in page
