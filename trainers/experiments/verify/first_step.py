"""Comparison of the first step of `one_device` with that of Keras's `fit`.

Strategies share the code of losses and metrics, so that comparing them with each other
cannot show a fault that all of them have.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.experiments.runner import Executed
from trainers.experiments.verify.differences import Difference, largest_difference
from trainers.experiments.verify.tolerance import tolerance
from trainers.experiments.verify.verdict import Verdict

# Differences are relative to the figure, or to this if it is smaller: a mean of terms
# that cancel has the rounding errors of the terms.
_SMALLEST_FIGURE = 1e-2


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """The loss or a metric of the first batch.

    Attributes:
      here: Value that `one_device` recorded.
      keras: Value of `compute_loss` or of the compiled metrics.
    """

    here: float
    keras: float

    @property
    def relative(self) -> float:
        if self.here == self.keras or (
            math.isnan(self.here) and math.isnan(self.keras)
        ):
            return 0.0
        relative = abs(self.here - self.keras) / max(abs(self.keras), _SMALLEST_FIGURE)
        return relative if math.isfinite(relative) else math.inf


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KerasFinding:
    """Result of comparing the first step with Keras's.

    Attributes:
      verdict: Verdict in one word.
      tolerance: Relative difference that rounding may make.
      figures: The loss and metrics, by name.
      gradients: The variable whose gradient differs most; None if not compared.
      reason: Reason why it is not comparable, or Keras's error.
      not_compared: Names of figures that only Keras or only `one_device` has.
    """

    verdict: Verdict
    tolerance: float
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    gradients: Difference | None = None
    reason: str = ""
    not_compared: Sequence[str] = ()

    def largest(self) -> dict[str, Difference]:
        """Returns differences by column of the table."""
        if self.gradients is None:
            return {}
        return {
            "loss": Difference(self.figures["loss"].relative),
            "gradients": self.gradients,
        }

    def explanations(self) -> list[str]:
        """Returns sentences on what differs, with both values, or on why not."""
        if self.verdict is Verdict.NOT_COMPARABLE:
            return [self.reason]
        if self.reason:
            return [f"Keras refuses what is trained here: {self.reason}"]
        lines = [
            f"{name} of the first batch is {figure.here:.9g} here and "
            f"{figure.keras:.9g} in Keras: {figure.relative:.1e} apart, tolerance "
            f"{self.tolerance:.1e}"
            for name, figure in self.figures.items()
            if figure.relative > self.tolerance
        ]
        if self.gradients and self.gradients.relative > self.tolerance:
            lines.append(
                f"the gradient of {self.gradients.variable} is "
                f"{self.gradients.relative:.1e} from Keras's, tolerance "
                f"{self.tolerance:.1e}"
            )
        if self.not_compared:
            names = ", ".join(self.not_compared)
            lines.append(f"not compared, because one of the two lacks it: {names}")
        return lines

    def entry(self) -> dict[str, Any]:
        """Returns what verify.json has of it."""
        return {
            "verdict": self.verdict.value,
            "tolerance": self.tolerance,
            "training": True,
            "figures": {
                name: {**dataclasses.asdict(figure), "relative": figure.relative}
                for name, figure in self.figures.items()
            },
            "gradients": dataclasses.asdict(self.gradients) if self.gradients else None,
            "reason": self.reason or None,
        }


def judge_keras(reference: Executed) -> KerasFinding:
    """Compares the first recorded step of one device with Keras's of the same batch."""
    keras = reference.recording.read_keras()
    # A loss may be a mean over all numbers that are predicted.
    terms = math.sqrt(keras.values_per_example)
    step = reference.recording.read(1)
    accepted = tolerance(reference.config.model.dtype, [step.examples]) * terms
    if keras.reason:
        verdict = Verdict.DIFFERENT if keras.refused else Verdict.NOT_COMPARABLE
        return KerasFinding(verdict=verdict, tolerance=accepted, reason=keras.reason)
    here = {"loss": step.loss / step.examples, **step.metrics}
    figures = {
        name: Figure(value, keras.figures[name])
        for name, value in here.items()
        if name in keras.figures
    }
    gradients = largest_difference(step.gradients, keras.gradients)
    apart = [gradients.relative, *(figure.relative for figure in figures.values())]
    if max(apart) > accepted:
        verdict = Verdict.DIFFERENT
    else:
        verdict = Verdict.EQUIVALENT if max(apart) else Verdict.IDENTICAL
    return KerasFinding(
        verdict=verdict,
        tolerance=accepted,
        figures=figures,
        gradients=gradients,
        not_compared=sorted(here.keys() ^ keras.figures.keys()),
    )
