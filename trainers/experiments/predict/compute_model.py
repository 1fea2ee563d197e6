"""Measurements of short runs, and the compute time of one replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trainers.experiments.predict.least_squares import solve


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The step time of a short run.

    Attributes:
      num_replicas: Number of replicas.
      examples: Number of examples that each replica computed for an update.
      step_seconds: Median seconds of a step; for asynchronous updates, which come in
        bursts, the seconds of a step at the median speed.
      gradient_bytes: Bytes of a replica's gradients, ballast included; 0 with one
        replica that sends nothing.
      size: `own` gradients of the model, with `ballast`, or of a `small` network.
      bandwidth_mbit: Emulated bandwidth in megabits per second; None for loopback.
    """

    num_replicas: int
    examples: float
    step_seconds: float
    gradient_bytes: float
    size: str = "own"
    bandwidth_mbit: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Compute time of an update by one replica with a machine to itself.

    Attributes:
      seconds: Seconds independent of the number of examples.
      seconds_per_example: Additional seconds per example.
      seconds_of_ballast: Additional seconds with ballast.
      seconds_of_small: Seconds of the small network.
    """

    seconds: float
    seconds_per_example: float
    seconds_of_ballast: float = 0.0
    seconds_of_small: float = 0.0

    @classmethod
    def fitted(cls, measurements: Sequence[Measurement]) -> Compute:
        """Fits the compute time to runs on one device.

        Relative errors have equal weight.
        """
        small = [m.step_seconds for m in measurements if m.size == "small"]
        # Another network, whose time says nothing about the user's.
        rest = [m for m in measurements if m.size != "small"]
        # Columns: a constant, examples of a replica, and the update of padding weights.
        rows = [(1.0, m.examples, float(m.size == "ballast")) for m in rest]
        seconds = [m.step_seconds for m in rest]
        fixed, per_example, ballast = solve(rows, seconds, weights=seconds).coefficients
        return cls(
            seconds=fixed,
            seconds_per_example=per_example,
            seconds_of_ballast=ballast,
            seconds_of_small=min(small, default=0.0),
        )

    def of(self, examples: float, size: str = "own") -> float:
        """Returns the seconds for a number of examples, and a size of gradients."""
        if size == "small":
            return self.seconds_of_small
        ballast = self.seconds_of_ballast if size == "ballast" else 0.0
        return self.seconds + self.seconds_per_example * examples + ballast
