"""Who this process is among the processes of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """One process's place in a cluster.

    Attributes:
      job: the role of this process.
      index: which process of that role it is.
      addresses: host:port of every task by job; empty for a single process.
    """

    job: str = "chief"
    index: int = 0
    addresses: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def task(self) -> str:
        """Name of this process in logs and results, such as `worker-1`."""
        return f"{self.job}-{self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes summaries, checkpoints and the result."""
        return self.job == "chief"
