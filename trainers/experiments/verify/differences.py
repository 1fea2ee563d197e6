"""Differences between two recordings of the same steps."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from trainers.run_dir.step_recording import RecordedStep, Recording

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
    """Differences between one step of a strategy and the same step of the reference.

    Attributes:
      step: Step, counted from one.
      identical: True if every bit is the same.
      differences: Relative differences by quantity ("loss", "gradients", "weights"), in
        the order of computation, and by variable (None for the loss). Gradients are
        missing if the reference records none, as Keras's own `fit` does. Weights are
        those after the step, with layer state such as moving averages.
      examples: Number of examples of this strategy's step.
      examples_expected: Number of examples of the step of the reference.
    """

    step: int
    identical: bool
    differences: Mapping[str, Mapping[str | None, float]]
    examples: int
    examples_expected: int

    def quantities(self) -> dict[str, Difference]:
        """Returns the largest difference of each quantity."""
        return {
            quantity: largest_of(relative)
            for quantity, relative in self.differences.items()
        }


def constants_of(reference: Recording) -> Collection[str]:
    """Returns the names of layer state that the steps of a recording do not change.

    The first step has changed all that it changes, so that a single one tells nothing.
    """
    last = reference.num_steps()
    if last < 2:
        return ()
    ended = reference.read(last).layer_state
    began = reference.read(1).layer_state
    return {
        name
        for name in began
        # A later call of `fit` can train a layer that was frozen: no constant.
        if name in ended and np.array_equal(began[name], ended[name], equal_nan=True)
    }


def agreement(
    step: int,
    found: RecordedStep,
    expected: RecordedStep,
    constants: Collection[str] = (),
) -> StepAgreement:
    """Compares one step of two recordings.

    Args:
      step: Number of the step, from 1.
      found: Step of the strategy.
      expected: Step of the reference.
      constants: Names of layer state that training does not change.
    """
    # The loss is one number: no floor from other variables applies.
    loss = _relative(_mean_loss(found), _mean_loss(expected), smallest=0.0)
    differences: dict[str, Mapping[str | None, float]] = {"loss": {None: loss}}
    if expected.gradients:
        differences["gradients"] = _by_variable(found.gradients, expected.gradients)
    differences["weights"] = {
        **_by_variable(found.weights, expected.weights),
        **_by_variable(found.layer_state, expected.layer_state, constants),
    }
    return StepAgreement(
        step=step,
        identical=_is_identical(found, expected),
        differences=differences,
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
    return largest_of(_by_variable(found, expected))


def largest_of(differences: Mapping[str | None, float]) -> Difference:
    """Returns the largest of relative differences by variable; zero names none."""
    name = max(differences, key=lambda name: differences[name], default=None)
    if name is None or not differences[name]:
        return Difference(differences.get(name, 0.0))
    return Difference(differences[name], name)


def _by_variable(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    constants: Collection[str] = (),
) -> dict[str | None, float]:
    # The floor that `_relative` divides by at least. It is without numbers that a layer
    # keeps, such as a mask of -1e9, beside which no difference would count.
    finite = {
        name: value[np.isfinite(value)]
        for name, value in expected.items()
        if name not in constants
    }
    smallest = _SMALLEST_PART * norm_of_all(finite)
    return {
        name: _relative(found[name], expected[name], smallest)
        if name in found and name in expected
        else np.inf
        for name in {**expected, **found}
    }


def _relative(found: np.ndarray, expected: np.ndarray, smallest: float) -> float:
    """Returns |found - expected| / |expected|; zero if equal, infinite if undefined."""
    if np.array_equal(found, expected, equal_nan=True):
        return 0.0
    if found.shape != expected.shape:
        return np.inf
    # Of state that is NaN until it is set, places may be NaN in both.
    is_unset = np.isnan(found) & np.isnan(expected)
    found, expected = found[~is_unset], expected[~is_unset]
    difference = float(np.linalg.norm(found - expected))
    scale = max(float(np.linalg.norm(expected)), smallest)
    relative = difference / scale if scale else np.inf
    return relative if np.isfinite(relative) else np.inf


def _is_identical(found: RecordedStep, expected: RecordedStep) -> bool:
    return (
        (found.loss, found.examples) == (expected.loss, expected.examples)
        and _are_equal(found.weights, expected.weights)
        and _are_equal(found.layer_state, expected.layer_state)
        # Keras's own `fit` records no gradients.
        and (not expected.gradients or _are_equal(found.gradients, expected.gradients))
    )


def _are_equal(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], value, equal_nan=True)
        for name, value in expected.items()
    )
