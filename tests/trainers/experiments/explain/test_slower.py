"""The section of a report that says why an arm is slower."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

from tests.trainers.experiments.compare.run_factory import make_arm
from tests.trainers.experiments.explain.test_breakdown import NUM_STEPS, task_of
from trainers.main import main

SPEEDS = (1000.0, 1010.0, 990.0)
SLOW = (500.0, 505.0, 495.0)


def pages_of(folder: pathlib.Path, one: str, two: str, *flags: str) -> list[str]:
    out = folder / "out"
    command = ["--mode=compare", f"--runs={one},{two}", f"--run_dir={out}", *flags]
    assert main(["trainers", *command]) == 0
    return [(out / name).read_text("utf-8") for name in ("report.html", "report.md")]


def change_results(arm: pathlib.Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in arm.glob("*/result.json"):
        result = json.loads(path.read_text())
        change(result)
        path.write_text(json.dumps(result))


def test_the_part_of_a_step_that_takes_longer_is_named(tmp_path: pathlib.Path) -> None:
    """Work between steps, and first calls, are not in the speed of the verdict."""
    one = make_arm(tmp_path / "one", [1000.0] * 3)
    two = make_arm(tmp_path / "two", [500.0] * 3, strategy="tower")

    def wait_for_input(result: dict[str, Any]) -> None:
        steps = result["throughput"]["step_milliseconds"]
        steps |= {"input": steps["total"] - 60.0, "compute": 53.0, "rest": 7.0}
        result["seconds"] |= {"train": 90.0, "eval": 50.0, "summary": 50.0}

    change_results(tmp_path / "two", wait_for_input)
    page, text = pages_of(tmp_path, one, two)
    for found in (page, text):
        assert "Why is two slower?" in found
        assert "Most of the difference to one is input" in found
        # The control is not slower than itself.
        assert "Why is one slower?" not in found
    # They add up to 64 examples at 500 and at 1,000 examples a second.
    assert (
        "input 68 in place of 6.4 milliseconds a step,\n"
        "steps without input 53 in place of 51.2 milliseconds a step,\n"
        "Python between calls 7 in place of 6.4 milliseconds a step.\n"
    ) in text


def test_times_of_other_batches_are_those_of_an_example(tmp_path: pathlib.Path) -> None:
    one = make_arm(tmp_path / "one", SPEEDS, global_batch_size=16)
    two = make_arm(tmp_path / "two", SLOW, global_batch_size=64)
    allowed = "--set=comparison.allow_different=global_batch_size"
    _, page = pages_of(tmp_path, one, two, allowed)
    assert (
        "steps without input 1.6e+03 in place of 800 microseconds an example," in page
    )


def test_phases_of_steps_are_shown_where_all_runs_have_them(
    tmp_path: pathlib.Path,
) -> None:
    arms = [
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", SLOW, strategy="tower"),
    ]
    for arm, exchange in (("one", 0.01), ("two", 0.06)):
        for run in (tmp_path / arm).iterdir():
            (run / "step_phases").mkdir()
            task = task_of("chief-0", (0.0, [0.03], exchange, 0.01))
            # Mostly between steps.
            task["wall_seconds"] = NUM_STEPS * 9.0
            (run / "step_phases" / "chief-0.json").write_text(json.dumps(task))
    for page in pages_of(tmp_path, *arms):
        assert "Most of the difference to one is all-reduce, messages" in page
    # 0.6 and 0.2 of 0.8 of a step.
    assert "messages 61.4 in place of 10.2 milliseconds a step" in page


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


def test_nothing_is_said_where_one_arm_does_not_know_its_input(
    tmp_path: pathlib.Path,
) -> None:
    """Keras's `fit` waits for its input within its steps."""
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SLOW, strategy="tower")
    change_results(
        tmp_path / "one",
        lambda result: result["throughput"]["step_milliseconds"].update(input=0.0),
    )
    for page in pages_of(tmp_path, one, two):
        assert "slower?" not in page
