"""Contention of replicas that share the cores of one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

# A finer grid changes no prediction by as much as runs differ.
_STEPS_OF_BUSY_CORES = 21
# On two cores three workers took 2.5 times as long as two: they wait for a core, and
# then for each other.
_CONTENTIONS = np.linspace(1.0, 2.5, 16)


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
