"""Rollback of a diverged run, with a smaller learning rate."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.base import Strategy
from strategies.common.errors import DivergedError
from trainers.model.optimizers.learning_rate import LearningRateScale
from trainers.run_dir.checkpoint_manifest import DamagedError
from trainers.run_dir.checkpoints import Checkpoints
from trainers.run_dir.train_state import RollbackHistory

# Factor of the learning rate at each rollback. A rate that diverges is rarely far above
# a rate that does not; three rollbacks give an eighth.
_FACTOR = 0.5
# Represents None in a broadcast variable.
_NOWHERE = -1


class Rollbacks:
    """Rollbacks of a diverged run, decided by the chief."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        learning_rate_scale: LearningRateScale,
        most: int,
        warn: Callable[[str], None],
    ):
        """Stores its parts; touches no file."""
        self._checkpoints = checkpoints
        self._learning_rate_scale = learning_rate_scale
        self._most = most
        self._warn = warn
        self._history = RollbackHistory()

    @property
    def count(self) -> int:
        return self._history.count

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint; empty if there was no rollback."""
        return {"rollbacks": dataclasses.asdict(self._history)} if self.count else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the history and the learning rate of a resumed run."""
        self._history = RollbackHistory(**state.get("rollbacks", {}))
        self._learning_rate_scale.assign(self._history.learning_rate_factor)

    def go_back(self, error: DivergedError) -> Mapping[str, Any] | None:
        """Restores a checkpoint from before a divergence and lowers the learning rate.

        The checkpoint is the newest one or, if training got no further than the last
        divergence, the one before the last restored checkpoint. Later checkpoints are
        removed, because their training is abandoned.

        Returns:
          The `state` of the checkpoint, or None if there is no checkpoint or the
            maximum number of rollbacks is reached.
        """
        history = self._history
        if history.count >= self._most:
            return None
        for step in reversed(self._candidates(error.step)):
            try:
                state = self._checkpoints.restore(step)
            except DamagedError as damage:
                self._warn(f"checkpoint of step {step} is passed over: {damage}")
                continue
            # Only after the restore has succeeded.
            self._checkpoints.remove_after(step)
            history.count += 1
            history.restored_step = step
            history.furthest_step = max(history.furthest_step, error.step)
            history.learning_rate_factor *= _FACTOR
            self._learning_rate_scale.assign(history.learning_rate_factor)
            self._warn(
                f"{error.what} step {error.step}: back to step {step}, with the "
                f"learning rate times {history.learning_rate_factor:g} (rollback "
                f"{history.count} of {self._most})."
            )
            return state
        return None

    def _candidates(self, diverged_at: int) -> list[int]:
        """Returns the steps of checkpoints to try, of which the last is tried first."""
        history = self._history
        steps = [step for step in self._checkpoints.steps() if step < diverged_at]
        if history.restored_step is None or diverged_at > history.furthest_step:
            return steps
        earlier = [step for step in steps if step < history.restored_step]
        # The oldest checkpoint is tried again, with a still smaller learning rate.
        return earlier or steps[:1]


def agree_on_step(strategy: Strategy, step: int | None) -> int | None:
    """Broadcasts the step of the checkpoint that the chief has restored; None for none.

    All processes must call this function after the same step. Only the step of the
    chief counts.
    """
    agreed = tf.Variable(_NOWHERE if step is None else step, dtype=tf.int64)
    strategy.broadcast_from_chief([agreed])
    found = int(agreed.numpy())
    return None if found == _NOWHERE else found
