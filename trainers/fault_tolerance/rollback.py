"""Goes back to a checkpoint when training has diverged, and on with a smaller rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.base import Strategy
from strategies.common.errors import DivergedError
from trainers.model.optimizers import RateFactor
from trainers.run_dir.checkpoint_manifest import DamagedError
from trainers.run_dir.checkpoints import Checkpoints
from trainers.run_dir.train_state import RollbackHistory

# Of the learning rate, each time. No rate that diverges is far above one that does not:
# three of them are an eighth.
_FACTOR = 0.5
_NOWHERE = -1


class Rollbacks:
    """Where a diverged run goes on. It is the chief that decides."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        rate_factor: RateFactor,
        most: int,
        warn: Callable[[str], None],
    ):
        """Touches no file yet.

        Args:
          checkpoints: of the run.
          rate_factor: of its learning rate.
          most: how often it may go back.
          warn: told each time, in a line.
        """
        self._checkpoints = checkpoints
        self._rate_factor = rate_factor
        self._most = most
        self._warn = warn
        self._history = RollbackHistory()

    @property
    def count(self) -> int:
        return self._history.count

    def state(self) -> dict[str, Any]:
        """For a checkpoint; nothing if the run has never gone back."""
        return {"rollbacks": dataclasses.asdict(self._history)} if self.count else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up the learning rate of a run that is continued."""
        self._history = RollbackHistory(**state.get("rollbacks", {}))
        self._rate_factor.assign(self._history.learning_rate_factor)

    def go_back(self, error: DivergedError) -> Mapping[str, Any] | None:
        """Restores a checkpoint from before a divergence, and makes the rate smaller.

        It is the newest, or, if training has come no further than when it went back
        before, the one before that which it went to. Later ones are removed: they are
        of a training that is given up.

        Returns:
          The `state` of the checkpoint, or None if there is none, or the run has gone
          back as often as it may.
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
            self._checkpoints.remove_after(step)
            history.count += 1
            history.restored_step = step
            history.furthest_step = max(history.furthest_step, error.step)
            history.learning_rate_factor *= _FACTOR
            self._rate_factor.assign(history.learning_rate_factor)
            self._warn(
                f"{error.what} step {error.step}: back to step {step}, with the "
                f"learning rate times {history.learning_rate_factor:g} (rollback "
                f"{history.count} of {self._most})."
            )
            return state
        return None

    def _candidates(self, diverged_at: int) -> list[int]:
        """Steps of checkpoints to try, the last one first."""
        history = self._history
        steps = [step for step in self._checkpoints.steps() if step < diverged_at]
        if history.restored_step is None or diverged_at > history.furthest_step:
            return steps
        earlier = [step for step in steps if step < history.restored_step]
        return earlier or steps[:1]


def agree_on_step(strategy: Strategy, step: int | None) -> int | None:
    """Tells all processes where the chief has gone back to.

    All have to call it after the same step.

    Args:
      strategy: connects them.
      step: of the checkpoint; None for nowhere. Only the chief's counts.
    """
    agreed = tf.Variable(_NOWHERE if step is None else step, dtype=tf.int64)
    strategy.share_from_chief([agreed])
    found = int(agreed.numpy())
    return None if found == _NOWHERE else found
