"""Differences between two steps, on made-up steps."""

import dataclasses
import math
import pathlib

import numpy as np
import pytest

from trainers.experiments.verify.diagnosis import where_it_begins
from trainers.experiments.verify.differences import (
    Difference,
    StepAgreement,
    agreement,
    constants_of,
)
from trainers.experiments.verify.tolerance import tolerance
from trainers.experiments.verify.verdict import (
    Judgement,
    ToleranceViolation,
    Verdict,
)
from trainers.run_dir.step_recording import RecordedStep, Recording

STEP = RecordedStep(
    loss=6.0,
    examples=3,
    random_layers=0,
    gradients={"large": np.array([3.0, 4.0]), "zero": np.zeros(2)},
    weights={"large": np.array([3.0, 4.0])},
    layer_state={},
)


def changed(**groups: object) -> RecordedStep:
    return dataclasses.replace(STEP, **groups)  # type: ignore[arg-type]


def test_the_same_step_is_identical() -> None:
    found = agreement(1, changed(), STEP)
    assert found.identical
    assert [q.relative for q in found.quantities().values()] == [0, 0, 0]


def test_differences_are_relative_and_name_the_variable() -> None:
    gradients = {"large": np.array([3.0, 4.5]), "zero": np.zeros(2)}
    found = agreement(1, changed(loss=9.0, gradients=gradients), STEP)
    assert not found.identical
    assert found.quantities()["loss"].relative == pytest.approx(0.5)
    assert found.quantities()["gradients"].relative == pytest.approx(0.5 / 5)
    assert found.quantities()["gradients"].variable == "large"
    assert found.quantities()["weights"].relative == 0


def test_an_infinite_mask_hides_no_difference_beside_it() -> None:
    state = {"mask": np.array([0.0, -np.inf]), "mean": np.array([3.0, 4.0])}
    expected = changed(layer_state=state)
    same = agreement(1, changed(layer_state=dict(state)), expected)
    assert same.quantities()["weights"].relative == 0
    moved = changed(layer_state={**state, "mean": np.array([3.0, 4.5])})
    found = agreement(1, moved, expected).quantities()["weights"]
    assert found.relative == pytest.approx(0.5 / 5)
    assert found.variable == "mean"


def test_state_that_is_not_set_yet_is_equal_to_itself(tmp_path: pathlib.Path) -> None:
    reference = Recording(tmp_path)
    for step in (1, 2):
        reference.write(step, changed(layer_state={"unset": np.array([1.0, np.nan])}))
    expected = reference.read(2)
    found = agreement(2, reference.read(2), expected)
    assert found.identical
    assert found.quantities()["weights"].relative == 0
    assert constants_of(reference) == {"unset"}
    beside = changed(layer_state={"unset": np.array([1.5, np.nan])})
    assert agreement(2, beside, expected).quantities()["weights"].relative == 0.5
    set_ = changed(layer_state={"unset": np.array([1.0, 2.0])})
    assert agreement(2, set_, expected).quantities()["weights"].relative == math.inf


def test_a_layer_that_is_frozen_at_first_is_no_constant(tmp_path: pathlib.Path) -> None:
    """A second call of `fit` trains it: its weights are layer state before only."""
    reference = Recording(tmp_path)
    mask = {"mask": np.array([1.0])}
    frozen = {**mask, "kernel": np.array([3.0])}
    reference.write(1, changed(layer_state=frozen))
    reference.write(2, changed(layer_state=mask))
    assert constants_of(reference) == {"mask"}


def test_a_constant_hides_no_difference_beside_it(tmp_path: pathlib.Path) -> None:
    reference = Recording(tmp_path)
    for step, mean in ((1, [3.0, 4.0]), (2, [6.0, 8.0])):
        state = {"mask": np.array([-1e18]), "mean": np.array(mean)}
        reference.write(step, changed(layer_state=state))
    expected = reference.read(2)
    moved = {**expected.layer_state, "mean": np.array([6.0, 8.5])}
    found = agreement(
        *(2, changed(layer_state=moved), expected), constants_of(reference)
    )
    assert found.quantities()["weights"].relative == pytest.approx(0.5 / 10)


def test_what_should_be_zero_is_measured_against_the_rest() -> None:
    """A hundredth of the norm of all gradients, 5."""
    gradients = {"large": np.array([3.0, 4.0]), "zero": np.array([1e-9, 0.0])}
    found = agreement(1, changed(gradients=gradients), STEP)
    assert found.quantities()["gradients"].relative == pytest.approx(1e-9 / 0.05)
    assert found.quantities()["gradients"].variable == "zero"


@pytest.mark.parametrize(
    "gradients",
    [
        {"large": np.array([3.0, 4.0])},
        {"large": np.array([3.0, np.nan]), "zero": np.zeros(2)},
        {"large": np.array([3.0, 4.0, 0.0]), "zero": np.zeros(2)},
    ],
    ids=["absent", "not a number", "of another shape"],
)
def test_what_cannot_be_measured_differs_without_limit(
    gradients: dict[str, np.ndarray],
) -> None:
    found = agreement(1, changed(gradients=gradients), STEP)
    assert not found.identical
    assert found.quantities()["gradients"].relative == math.inf


def test_layer_state_counts_with_the_weights() -> None:
    expected = changed(layer_state={"mean": np.array([2.0])})
    found = agreement(1, changed(layer_state={"mean": np.array([3.0])}), expected)
    assert found.quantities()["weights"].variable == "mean"
    assert found.quantities()["weights"].relative == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("dtype", "step", "expected"),
    [("float32", 1, 3.8e-6), ("float32", 20, 1.7e-5), ("float64", 20, 3.2e-14)],
)
def test_the_tolerance_is_as_documented(dtype: str, step: int, expected: float) -> None:
    found = tolerance(dtype, [64] * step)
    # Documents give two digits.
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("num_replicas", "words"),
    [(1, "one replica computes"), (2, "replicas compute another loss")],
)
def test_a_replica_alone_has_other_causes_than_several(
    num_replicas: int, words: str
) -> None:
    violation = ToleranceViolation(
        step=17, quantity="loss", difference=Difference(0.1), tolerance=1e-14
    )
    judgement = Judgement(
        verdict=Verdict.DIFFERENT, steps=[], largest={}, first_violation=violation
    )
    likely = where_it_begins(num_replicas, judgement)
    assert likely.startswith(words)
    assert "shuffled anew for every reader" in likely
    assert likely.endswith("; first at step 17, loss")


@pytest.mark.parametrize(
    ("quantities", "words"),
    [
        (("loss", "gradients", "weights"), "summed gradients agree"),
        (("loss", "weights"), "Keras's fit records no gradients"),
    ],
)
def test_gradients_that_nobody_compared_do_not_agree(
    quantities: tuple[str, ...], words: str
) -> None:
    step = StepAgreement(
        step=1,
        identical=False,
        differences={quantity: {None: 0.1} for quantity in quantities},
        examples=8,
        examples_expected=8,
    )
    violation = ToleranceViolation(
        step=1, quantity="weights", difference=Difference(0.1), tolerance=1e-14
    )
    judgement = Judgement(
        verdict=Verdict.DIFFERENT, steps=[step], largest={}, first_violation=violation
    )
    assert words in where_it_begins(2, judgement)
