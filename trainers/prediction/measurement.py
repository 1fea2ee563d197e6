"""What a short run measured, and what those on one device tell of computing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trainers.prediction.least_squares import solve


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The step time of a short run.

    Attributes:
      num_replicas: that took part.
      examples: that each computed for an update.
      step_seconds: between two updates, the median.
      gradient_bytes: of a replica, ballast included; 0 where there is but one.
      has_ballast: whether there were weights that compute nothing.
    """

    num_replicas: int
    examples: float
    step_seconds: float
    gradient_bytes: float
    has_ballast: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """What one replica with a machine to itself takes for an update.

    Attributes:
      seconds: whatever the examples.
      seconds_per_example: and for each of them.
      seconds_of_ballast: where there is any.
    """

    seconds: float
    seconds_per_example: float
    seconds_of_ballast: float = 0.0

    @classmethod
    def fitted(cls, measurements: Sequence[Measurement]) -> Compute:
        """To runs on one device, with relative errors of equal weight."""
        rows = [(1.0, m.examples, float(m.has_ballast)) for m in measurements]
        seconds = [m.step_seconds for m in measurements]
        fixed, per_example, ballast = solve(rows, seconds, weights=seconds).coefficients
        return cls(
            seconds=fixed, seconds_per_example=per_example, seconds_of_ballast=ballast
        )

    def of(self, examples: float, has_ballast: bool = False) -> float:
        """Seconds for so many examples."""
        ballast = self.seconds_of_ballast if has_ballast else 0.0
        return self.seconds + self.seconds_per_example * examples + ballast
