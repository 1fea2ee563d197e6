"""Measurements of short runs, and the compute time of replicas that share cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from trainers.experiments.predict.least_squares import solve

# A finer grid changes no prediction by as much as runs differ.
_STEPS_OF_BUSY_CORES = 21
# On two cores three workers took 2.5 times as long as two: they wait for a core, and
# then for each other.
_CONTENTIONS = np.linspace(1.0, 2.5, 16)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The step time of a short run.

    Attributes:
      num_replicas: Number of replicas.
      examples: Number of examples that each replica computed for an update.
      step_seconds: Median seconds of a step; for asynchronous updates, which come in
        bursts, the mean of the median window.
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuContention:
    """CPU contention of replicas that share cores.

    Attributes:
      cores: Number of cores that the replicas share.
      busy_cores: Number of cores that each replica keeps busy when it computes alone.
      contention: Additional factor once there are more replicas than cores, beyond the
        factor that their number explains.
    """

    cores: float
    busy_cores: float
    contention: float = 1.0

    def of_computing(self, num_replicas: int) -> float:
        """Returns the factor of the compute time."""
        return self._factor(num_replicas, self.busy_cores)

    def of_sending(self, num_replicas: int) -> float:
        """Returns the factor of all that one thread of each replica does."""
        return self._factor(num_replicas, 1.0)

    def _factor(self, num_replicas: int, busy_cores: float) -> float:
        # Cores that all replicas need, relative to the cores they share.
        wanted = max(1.0, num_replicas * busy_cores / self.cores)
        return wanted if num_replicas <= self.cores else self.contention * wanted


# Each replica has a machine.
APART = CpuContention(cores=float("inf"), busy_cores=0.0)


def candidates(cores: int) -> Iterator[CpuContention]:
    """Yields contentions that a fit tries, with the least first."""
    # 0 busy cores: no contention of computing.
    for busy_cores in np.linspace(0.0, cores, _STEPS_OF_BUSY_CORES):
        for contention in _CONTENTIONS:
            yield CpuContention(
                cores=cores, busy_cores=float(busy_cores), contention=float(contention)
            )
