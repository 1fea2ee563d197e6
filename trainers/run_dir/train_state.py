"""State of a run in addition to its variables."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from strategies.common.text import shown
from strategies.common.types import StepResults
from trainers.run_dir.checkpoint_manifest import DamagedError
from trainers.run_dir.encoding import is_not_finite


@dataclasses.dataclass(slots=True)
class TrainCounters:
    """Counters of a run, kept in its checkpoints.

    Attributes:
      attempted_steps: Number of updates begun, applied or not.
      examples_seen: Number of training examples in the applied updates.
      dropped_gradients: Number of gradients dropped because they arrived after their
        update; None if updates wait for every gradient.
    """

    attempted_steps: int = 0
    examples_seen: int = 0
    dropped_gradients: int | None = None

    def add(self, results: StepResults) -> None:
        self.attempted_steps += results.attempted_steps
        # The last attempted step may not have been applied.
        examples = results.sums["examples"][: results.applied_steps]
        self.examples_seen += int(examples.sum())
        if results.dropped_gradients is not None:
            late = int(results.dropped_gradients.sum())
            self.dropped_gradients = (self.dropped_gradients or 0) + late

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@dataclasses.dataclass(slots=True)
class RollbackHistory:
    """Rollbacks of a run so far.

    Attributes:
      count: Number of rollbacks.
      restored_step: Step of the last restored checkpoint; None before the first
        rollback.
      furthest_step: Latest step at which the run has diverged.
      learning_rate_factor: Current factor of the learning rate.
    """

    count: int = 0
    restored_step: int | None = None
    furthest_step: int = 0
    learning_rate_factor: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class DataSize:
    """Numbers of examples of a run, to train on and held out."""

    train: int = 0
    evaluation: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PhaseStart:
    """Number of updates before a training of a program."""

    first_step: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class FitCall:
    """Call of `fit` of a program.

    Attributes:
      number: Number of the call, from 1; calls that train no epoch count too.
      initial_epoch: Its argument.
      epochs: Its argument.
      updates: Number of updates that the optimizer had made before.
    """

    number: int
    initial_epoch: int
    epochs: int
    updates: int


@dataclasses.dataclass(slots=True)
class NoiseMeans:
    """Running means of the two parts of the gradient noise scale, over reports."""

    num_reports: int = 0
    gradient_square: float = 0.0
    noise: float = 0.0


# Key of the attributes of a program's callbacks, by callback.
CALLBACKS = "callbacks"
# Key of the states of random generators, at the end of a program's `fit`.
RANDOM = "random"
# Key of the logs of the last epoch of a program's `fit`.
LAST_LOGS = "last_logs"
# Keys in the history of a program's `fit`, in addition to the lists of a log.
# Whether a callback has stopped the training.
STOPPED = "/stopped"
# Whether a callback has asked to stop, which `fit` checks after the next batch.
ASKED = "/asked_to_stop"
# Whether callbacks have begun the next batch; not after the last step.
BEGUN = "/begun"
# Numbers of the epochs.
EPOCHS = "/epochs"


def is_stopped(state: Mapping[str, Any]) -> bool:
    """Returns whether a callback has stopped the training of a checkpoint."""
    return bool(state.get("history", {}).get(STOPPED, False))


def was_over(state: Mapping[str, Any]) -> bool:
    """Returns whether a program's `fit` had no further batch at a checkpoint."""
    return not state.get("history", {}).get(BEGUN, True)


# Parts with fixed fields, and parts with entries by the names of a program.
_PARTS = {
    "tally": TrainCounters,
    "rollbacks": RollbackHistory,
    "data": DataSize,
    "phase": PhaseStart,
    "fit": FitCall,
    "noise_scale": NoiseMeans,
}
_BY_NAME = (
    *("interval_sums", "epoch_sums", "history"),
    *(CALLBACKS, RANDOM, LAST_LOGS),
)


def check_state(state: Mapping[str, Any]) -> None:
    """Checks the form of a checkpoint's state before any of it is used.

    The digest detects accidental changes, but not a state that somebody has changed and
    signed again.

    Raises:
      DamagedError: The state does not have the form that a run saves.
    """
    for name, content in state.items():
        if not isinstance(content, dict) or name not in (*_PARTS, *_BY_NAME):
            raise DamagedError(f"its {shown(name)} is not of the right form")
        for key, value in content.items():
            if not _is_accepted(name, key, value):
                raise DamagedError(
                    f"its {shown(name)} has {shown(key)} = {shown(value)}"
                )


def _is_accepted(part: str, key: str, value: Any) -> bool:
    """Returns whether an entry of a part has a JSON value that a run saves."""
    if part in _PARTS:
        hints = typing.get_type_hints(_PARTS[part])
        return key in hints and _is_number(value, hints[key])
    if part == CALLBACKS:
        return isinstance(value, dict)
    if part == RANDOM:
        return value is None or isinstance(value, list)
    if part == LAST_LOGS:
        return isinstance(value, list) and len(value) == 1
    # Callbacks of a program log numbers, texts and arrays.
    is_log = part == "history" and key not in (STOPPED, ASKED, BEGUN, EPOCHS)
    return (is_log and isinstance(value, list)) or _is_sum(value)


def _is_sum(value: Any) -> bool:
    """Returns whether a value is a number, perhaps not finite, or lists of numbers."""
    if isinstance(value, list):
        return all(map(_is_sum, value))
    return is_not_finite(value) or _is_number(value, float | None)


def _is_number(value: Any, hint: Any) -> bool:
    """Returns whether a value is a finite number, or None, of a type."""
    accepted = typing.get_args(hint) or (hint,)
    if value is None:
        return type(None) in accepted
    # bool is a subclass of int.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and (float in accepted or isinstance(value, int))
