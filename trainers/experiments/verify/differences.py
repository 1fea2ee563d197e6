"""Differences between two recordings of the same steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from trainers.run_dir.step_recording import RecordedStep

# A variable whose norm is below this fraction of the norm of all variables is compared
# with that fraction instead. Two cases need it: the gradient of a bias before a
# normalization is rounding only, and a bias that begins at zero has no digits to
# compare in the first steps.
_SMALLEST_PART = 1e-2


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Difference in one quantity of a step.

    Attributes:
      relative: |a - b| / |b| in L2 norms; infinite if either norm is not finite.
      variable: Variable with the largest difference; None for the loss.
    """

    relative: float
    variable: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepAgreement:
    """Differences between one step of a strategy and the same step of `one_device`.

    Attributes:
      step: Step, counted from one.
      identical: True if every bit is the same.
      loss: Difference of the mean loss.
      gradients: Difference of the variable whose summed gradient differs most; None if
        the reference records none, as Keras's own `fit` does.
      weights: Difference of the trainable variable that differs most after the step.
      layer_state: Difference of the non-trainable variable that differs most, such as a
        moving average.
      examples: Number of examples of this strategy's step.
      examples_expected: Number of examples of the step of `one_device`.
    """

    step: int
    identical: bool
    loss: Difference
    gradients: Difference | None
    weights: Difference
    layer_state: Difference
    examples: int
    examples_expected: int

    @property
    def variables(self) -> Difference:
        """Larger of the differences of weights and layer state."""
        return max(self.weights, self.layer_state, key=lambda found: found.relative)

    def quantities(self) -> dict[str, Difference]:
        """Returns the differences by name, in the order of computation."""
        gradients = {} if self.gradients is None else {"gradients": self.gradients}
        return {"loss": self.loss, **gradients, "weights": self.variables}


def agreement(step: int, found: RecordedStep, expected: RecordedStep) -> StepAgreement:
    """Compares one step of two recordings."""
    return StepAgreement(
        step=step,
        identical=_is_identical(found, expected),
        loss=Difference(
            # The loss is one number: no floor from other variables applies.
            _relative(_mean_loss(found), _mean_loss(expected), smallest=0.0)
        ),
        gradients=largest_difference(found.gradients, expected.gradients)
        if expected.gradients
        else None,
        weights=largest_difference(found.weights, expected.weights),
        layer_state=largest_difference(found.layer_state, expected.layer_state),
        examples=found.examples,
        examples_expected=expected.examples,
    )


def norm_of_all(values: Mapping[str, np.ndarray]) -> float:
    """Returns the L2 norm of all variables together."""
    return float(np.sqrt(sum(np.sum(np.square(value)) for value in values.values())))


def _mean_loss(step: RecordedStep) -> np.ndarray:
    return np.asarray(step.loss / step.examples)


def largest_difference(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> Difference:
    """Returns the largest difference; it is infinite if one side lacks a variable."""
    # The floor that `_relative` divides by at least.
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
    """Returns |found - expected| / |expected|; zero if equal, infinite if undefined."""
    if np.array_equal(found, expected):
        return 0.0
    if found.shape != expected.shape:
        return np.inf
    difference = float(np.linalg.norm(found - expected))
    scale = max(float(np.linalg.norm(expected)), smallest)
    relative = difference / scale if scale else np.inf
    return relative if np.isfinite(relative) else np.inf


def _is_identical(found: RecordedStep, expected: RecordedStep) -> bool:
    groups = ["weights", "layer_state", *(["gradients"] if expected.gradients else [])]
    return (
        (found.loss, found.examples) == (expected.loss, expected.examples)
        and all(getattr(found, g).keys() == getattr(expected, g).keys() for g in groups)
        and all(
            np.array_equal(getattr(found, group)[name], value)
            for group in groups
            for name, value in getattr(expected, group).items()
        )
    )
