"""Causes that recordings prove, and warnings, on made-up recordings of one step.

`test_planted_faults.py` has causes that repetitions find, with real runs.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.run_record import read_run
from trainers.experiments.runner import Executed
from trainers.experiments.verify.diagnosis import Cause, find_cause
from trainers.experiments.verify.report import Finding, explanations
from trainers.experiments.verify.verdict import Verdict, judge
from trainers.run_dir.step_recording import RecordedStep, Recording

STEP = RecordedStep(
    loss=6.0,
    examples=8,
    random_layers=0,
    gradients={"kernel": np.array([3.0, 4.0])},
    weights={"kernel": np.array([1.0, 2.0])},
    layer_state={"normalize/moving_mean": np.array([0.5, 0.25])},
)


def executed(
    folder: pathlib.Path,
    step: RecordedStep,
    log: str = "",
    num_steps: int = 1,
    **result: str,
) -> Executed:
    """Returns a run of two replicas that has recorded the same step several times."""
    folder.mkdir()
    parts: dict[str, Any] = {
        key: {} for key in ("throughput", "final", "seconds", "traits")
    }
    content = {"status": "completed", "num_replicas": 2, **parts, **result}
    (folder / "result.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "log").write_text(log, encoding="utf-8")
    for number in range(1, num_steps + 1):
        Recording(folder).write(number, step)
    run = read_run(folder, arm=folder.name, seed=0, log=folder / "log")
    return Executed(Config().replace(strategy="mirrored", dtype="float64"), run)


def cause_of(subject: Executed, reference: Executed) -> Cause:
    """Returns the cause of a difference, for which nothing is repeated."""

    def repeat(name: str, config: Config) -> Executed:
        raise AssertionError(f"{name} is repeated")

    judgement = judge(subject, reference)
    assert judgement.verdict is Verdict.DIFFERENT
    return find_cause("mirrored", subject, reference, judgement, repeat)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"gradients": {"kernel": np.array([1.5, 2.0])}},
            "gradients are 0.5 times those of one_device: averaged over 2 replicas",
        ),
        (
            {"loss": 4.0, "examples": 4},
            "step 1 counted 4 of 8 examples: some replicas' rows are missing",
        ),
        (
            {
                "weights": {"kernel": np.array([1.0, 2.5])},
                "layer_state": {"normalize/moving_mean": np.array([0.4, 0.5])},
            },
            "as when only the first replica's are kept",
        ),
    ],
    ids=["averaged twice", "examples", "statistics"],
)
def test_a_recording_proves_a_cause(
    tmp_path: pathlib.Path, changed: dict[str, Any], words: str
) -> None:
    reference = executed(tmp_path / "one_device", STEP)
    subject = executed(tmp_path / "mirrored", dataclasses.replace(STEP, **changed))
    cause = cause_of(subject, reference)
    assert words in cause.likely
    assert cause.tests == ()


def test_a_warning_of_a_strategy_alone_is_the_likely_cause(
    tmp_path: pathlib.Path,
) -> None:
    step = dataclasses.replace(STEP, layer_state={"counted/total": np.array(9.0)})
    both = "warning: the model is small\n"
    reference = executed(tmp_path / "one_device", step, both)
    remark = "the state total changes by no mean, so that their number matters"
    own = f"mirrored  2 replicas\nwarning: too much memory\nwarning: {remark}\n"
    other = dataclasses.replace(step, layer_state={"counted/total": np.array(4.5)})
    subject = executed(tmp_path / "mirrored", other, both + own)
    cause = cause_of(subject, reference)
    # Other warnings change no loss and no weight.
    assert (cause.likely, cause.remarks) == (remark, ["warns: too much memory"])


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (4.0, "replicas compute another loss from the same weights"),
        (6.0, "goes away without batch normalization: the moving statistics of step 1"),
    ],
    ids=["random numbers", "statistics"],
)
def test_other_random_numbers_change_statistics_too(
    tmp_path: pathlib.Path, outcome: float, words: str
) -> None:
    """Numbers of `tf.random` are no random layers in a recording."""
    state = {"normalize/moving_mean": np.array([0.4, 0.5])}
    other = dataclasses.replace(STEP, loss=5.0, layer_state=state)
    reference = executed(tmp_path / "one_device", STEP)
    subject = executed(tmp_path / "mirrored", other)

    def repeat(name: str, config: Config) -> Executed:
        is_subject = name.startswith("mirrored")
        step = dataclasses.replace(STEP, loss=outcome) if is_subject else STEP
        again = executed(tmp_path / name, step)
        return dataclasses.replace(again, config=config)

    judgement = judge(subject, reference)
    cause = find_cause("mirrored", subject, reference, judgement, repeat)
    assert words in cause.likely


def test_other_examples_are_the_cause(tmp_path: pathlib.Path) -> None:
    """A program whose generators have no seed draws others in each run."""
    other = dataclasses.replace(STEP, loss=5.0)
    reference = executed(tmp_path / "one_device", STEP, first_examples_sha256="a")
    subject = executed(tmp_path / "mirrored", other, first_examples_sha256="b")
    likely = cause_of(subject, reference).likely
    assert "give the generators of its data a seed" in likely


@pytest.mark.parametrize(
    ("num_steps", "words"),
    [
        ((2, 3), "trains on after step 2, with which the reference ends"),
        ((3, 2), "ends with step 2, after which the reference trains on"),
    ],
    ids=["more", "fewer"],
)
def test_other_numbers_of_steps_are_different(
    tmp_path: pathlib.Path, num_steps: tuple[int, int], words: str
) -> None:
    """A callback of the program ends the training of one of the two."""
    reference = executed(tmp_path / "one_device", STEP, num_steps=num_steps[0])
    subject = executed(tmp_path / "mirrored", STEP, num_steps=num_steps[1])
    judgement = judge(subject, reference)
    finding = Finding(
        arm=Arm(name="mirrored", config=subject.config),
        recorded=subject,
        verdict=judgement.verdict,
        judgement=judgement,
        cause=cause_of(subject, reference),
    )
    remark, cause = (line for _, line in explanations(None, [finding]))
    assert remark == words
    assert "another loss" not in cause
    assert "ends the training" in cause


def test_a_step_that_diverged_has_no_loss_to_compare(tmp_path: pathlib.Path) -> None:
    reference = executed(tmp_path / "one_device", STEP, num_steps=2)
    subject = executed(tmp_path / "mirrored", STEP, status="diverged")
    violation = judge(subject, reference).first_violation
    assert violation is not None
    assert (violation.step, violation.quantity) == (2, "loss")
