"""The state of a run besides its variables."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from strategies.common.text import shown
from strategies.common.types import StepResults
from trainers.run_dir.checkpoint_manifest import DamagedError


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


@dataclasses.dataclass(slots=True)
class RollbackHistory:
    """What a run has gone back from.

    Attributes:
      count: how often it went back.
      restored_step: where it went last; None before the first time.
      furthest_step: the latest step at which it has diverged.
      learning_rate_factor: what its learning rate is multiplied with since.
    """

    count: int = 0
    restored_step: int | None = None
    furthest_step: int = 0
    learning_rate_factor: float = 1.0


# The parts with fields of their own. Sums are numbers by the names of metrics.
_PARTS = {"tally": Tally, "rollbacks": RollbackHistory}
_SUMS = "interval_sums"


def check_state(state: Mapping[str, Any]) -> None:
    """Checks it before any of it is used.

    A digest tells what has changed by itself, not what somebody has signed anew.

    Raises:
      DamagedError: it is not of the form that a run saves.
    """
    for name, content in state.items():
        part = _PARTS.get(name)
        if not isinstance(content, dict) or (part is None and name != _SUMS):
            raise DamagedError(f"its {shown(name)} is not of the right form")
        fields = typing.get_type_hints(part) if part else dict.fromkeys(content, float)
        for key, value in content.items():
            if key not in fields or not _is_of(value, fields[key]):
                raise DamagedError(
                    f"its {shown(name)} has {shown(key)} = {shown(value)}"
                )


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is a number that such a field takes, or none."""
    if value is None:
        return type(None) in typing.get_args(kind)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    takes_fractions = kind is float
    return math.isfinite(value) and (takes_fractions or isinstance(value, int))
