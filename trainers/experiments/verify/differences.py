"""How far two recordings of the same steps are apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from trainers.run_dir.step_recording import RecordedStep

# What is below this part of the norm of all variables together is measured against
# that: a bias in front of a normalization has a gradient of nothing but rounding, and
# one that begins at zero has no digits to compare in the first steps.
_SMALLEST_PART = 1e-2


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of a step.

    Attributes:
      relative: |a - b| / |b|, of L2 norms; infinite if one of them is not finite.
      variable: of which it is the largest; None for the loss.
    """

    relative: float
    variable: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepAgreement:
    """How far one step of a strategy is from the same step of `one_device`.

    Attributes:
      step: counted from one.
      identical: whether every bit is the same.
      loss: of the mean loss.
      gradients: the variable whose summed gradient differs most.
      weights: the trained variable that differs most after the step.
      layer_state: the same of what is not trained, such as moving averages.
      examples: how many this strategy's step had.
      examples_expected: how many there were.
    """

    step: int
    identical: bool
    loss: Difference
    gradients: Difference
    weights: Difference
    layer_state: Difference
    examples: int
    examples_expected: int

    @property
    def variables(self) -> Difference:
        """The larger of the last two."""
        return max(self.weights, self.layer_state, key=lambda found: found.relative)

    def quantities(self) -> dict[str, Difference]:
        """By name, in the order in which a step computes them."""
        return {
            "loss": self.loss,
            "gradients": self.gradients,
            "weights": self.variables,
        }


def agreement(step: int, found: RecordedStep, expected: RecordedStep) -> StepAgreement:
    """Compares one step."""
    return StepAgreement(
        step=step,
        identical=_is_identical(found, expected),
        loss=Difference(
            _relative(_mean_loss(found), _mean_loss(expected), smallest=0.0)
        ),
        gradients=largest_difference(found.gradients, expected.gradients),
        weights=largest_difference(found.weights, expected.weights),
        layer_state=largest_difference(found.layer_state, expected.layer_state),
        examples=found.examples,
        examples_expected=expected.examples,
    )


def norm_of_all(values: Mapping[str, np.ndarray]) -> float:
    """The norm of all variables together."""
    return float(np.sqrt(sum(np.sum(np.square(value)) for value in values.values())))


def _mean_loss(step: RecordedStep) -> np.ndarray:
    return np.asarray(step.loss / step.examples)


def largest_difference(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> Difference:
    """Of all variables; one that only one of them has differs without limit."""
    smallest = _SMALLEST_PART * norm_of_all(expected)
    largest = Difference(0.0)
    for name in {**expected, **found}:
        relative = np.inf
        if name in found and name in expected:
            relative = _relative(found[name], expected[name], smallest)
        if relative > largest.relative:
            largest = Difference(relative, name)
    return largest


def _relative(found: np.ndarray, expected: np.ndarray, smallest: float) -> float:
    """Zero for equal values, zeros included; infinite where it cannot be told."""
    if np.array_equal(found, expected):
        return 0.0
    if found.shape != expected.shape:
        return np.inf
    difference = float(np.linalg.norm(found - expected))
    scale = max(float(np.linalg.norm(expected)), smallest)
    relative = difference / scale if scale else np.inf
    return relative if np.isfinite(relative) else np.inf


def _is_identical(found: RecordedStep, expected: RecordedStep) -> bool:
    groups = ("gradients", "weights", "layer_state")
    return (
        (found.loss, found.examples) == (expected.loss, expected.examples)
        and all(getattr(found, g).keys() == getattr(expected, g).keys() for g in groups)
        and all(
            np.array_equal(getattr(found, group)[name], value)
            for group in groups
            for name, value in getattr(expected, group).items()
        )
    )
