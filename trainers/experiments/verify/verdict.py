"""The verdict on a strategy: identical, equivalent or different."""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence

from trainers.experiments.runner import Executed
from trainers.experiments.verify.differences import (
    Difference,
    StepAgreement,
    agreement,
    constants_of,
    largest_of,
)
from trainers.experiments.verify.tolerance import tolerance


class Verdict(enum.Enum):
    """Verdicts, with their words in the table."""

    IDENTICAL = "identical"
    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ToleranceViolation:
    """The first difference beyond the tolerance.

    Attributes:
      step: Step, counted from one.
      quantity: "loss", "gradients" or "weights"; "steps" where only one of two
        completed runs has the step.
      difference: Size of the difference, and the variable that has it.
      tolerance: Tolerance of that step.
    """

    step: int
    quantity: str
    difference: Difference
    tolerance: float

    def in_words(self) -> str:
        """Returns words such as `step 3, gradients of hidden_1/kernel`."""
        variable = self.difference.variable
        of = "" if variable is None else f" of {variable}"
        return f"step {self.step}, {self.quantity}{of}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Comparison of a strategy with the reference.

    Attributes:
      verdict: Verdict in one word.
      steps: Steps that both runs have recorded, in their order.
      largest: Largest difference over all steps, by quantity.
      first_violation: First difference beyond the tolerance; None if there is none.
      by_rounding: First difference beyond the tolerance, if the training amplifies
        rounding as much.
    """

    verdict: Verdict
    steps: Sequence[StepAgreement]
    largest: Mapping[str, Difference]
    first_violation: ToleranceViolation | None
    by_rounding: ToleranceViolation | None = None


# The largest difference that amplified rounding explains: by step, then by quantity and
# variable. Steps after the last have that of the last.
Allowed = Sequence[Mapping[tuple[str, str | None], float]]


def judge(subject: Executed, reference: Executed, allowed: Allowed = ()) -> Judgement:
    """Compares all steps that both runs have recorded.

    A run that diverges where the other does not is different from the first step that
    it has not reached; so is a run that a callback ends earlier or later. `allowed` are
    differences that rounding explains, if known.
    """
    shorter, longer = sorted(
        (subject, reference), key=lambda run: run.recording.num_steps()
    )
    common = shorter.recording.num_steps()
    found, expected = subject.recording, reference.recording
    constants = constants_of(expected)
    steps = [
        agreement(step, found.read(step), expected.read(step), constants)
        for step in range(1, common + 1)
    ]
    beyond = _first_violation(subject, steps)
    violation = _first_violation(subject, steps, allowed) if allowed else beyond
    if violation is None and longer.recording.num_steps() > common:
        examples = [step.examples_expected for step in steps]
        examples.append(longer.recording.read(common + 1).examples)
        violation = ToleranceViolation(
            step=common + 1,
            quantity="loss" if shorter.run.status == "diverged" else "steps",
            # The step has no loss to compare.
            difference=Difference(math.inf),
            tolerance=tolerance(subject.config.model.dtype, examples),
        )
    if violation is not None:
        verdict = Verdict.DIFFERENT
    # Identical means equal in every bit; equivalent means within the tolerance.
    elif all(step.identical for step in steps):
        verdict = Verdict.IDENTICAL
    else:
        verdict = Verdict.EQUIVALENT
    return Judgement(
        verdict=verdict,
        steps=steps,
        largest=_largest(steps),
        first_violation=violation,
        by_rounding=beyond if violation is None else None,
    )


def _first_violation(
    subject: Executed, steps: Sequence[StepAgreement], allowed: Allowed = ()
) -> ToleranceViolation | None:
    examples: list[int] = []
    for step in steps:
        examples.append(step.examples_expected)
        accepted = tolerance(subject.config.model.dtype, examples)
        explained = allowed[min(step.step, len(allowed)) - 1] if allowed else {}
        # In the order of computation, so that the first quantity is nearest to the
        # cause.
        for quantity, by_variable in step.differences.items():
            beyond = {
                variable: relative
                for variable, relative in by_variable.items()
                if relative > max(accepted, explained.get((quantity, variable), 0.0))
            }
            if beyond:
                return ToleranceViolation(
                    step=step.step,
                    quantity=quantity,
                    difference=largest_of(beyond),
                    tolerance=accepted,
                )
    return None


def _largest(steps: Sequence[StepAgreement]) -> dict[str, Difference]:
    quantities = [step.quantities() for step in steps]
    return {
        name: max((q[name] for q in quantities), key=lambda found: found.relative)
        for name in (quantities[0] if quantities else ())
    }
