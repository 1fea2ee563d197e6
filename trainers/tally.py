"""What a run has done, counted over all its processes so far."""

from __future__ import annotations

import dataclasses
from typing import Any

from strategies.base import StepResults


@dataclasses.dataclass(slots=True)
class Tally:
    """Counts of a run, kept in its checkpoints.

    Attributes:
      attempted_steps: updates begun, applied or not.
      examples_seen: training examples in the updates that were applied.
      late_gradients: left out because their update had gone on without them; None
        where updates wait for every gradient.
    """

    attempted_steps: int = 0
    examples_seen: int = 0
    late_gradients: int | None = None

    def add(self, results: StepResults) -> None:
        self.attempted_steps += results.attempted_steps
        examples = results.sums["examples"][: results.applied_steps]
        self.examples_seen += int(examples.sum())
        if results.late_gradients is not None:
            late = int(results.late_gradients.sum())
            self.late_gradients = (self.late_gradients or 0) + late

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return dataclasses.asdict(self)

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
