"""Executions of several steps (`steps_per_execution`), between calls of callbacks."""

from __future__ import annotations

import dataclasses

from trainers.keras_program.fit_arguments import EpochLengths


@dataclasses.dataclass(frozen=True, slots=True)
class Executions:
    """The steps of epochs in executions, which begin anew with each epoch.

    A step is given as the number of those before it.

    Attributes:
      lengths: Numbers of steps of the epochs.
      size: Number of steps of an execution that its epoch does not cut short.
    """

    lengths: EpochLengths
    size: int

    def first_batch(self, step: int) -> int:
        """Returns the first batch, of its epoch, of the execution that a step is in."""
        batch = self.lengths.batch_of(step)
        return batch - batch % self.size

    def last_batch(self, step: int) -> int:
        """Returns the last batch in the same way.

        Keras counts whole executions, also where an epoch has fewer steps left
        (keras/src/trainers/epoch_iterator.py, `_enumerate_iterator`).
        """
        return self.first_batch(step) + self.size - 1

    def end(self, step: int) -> int:
        """Returns the number of steps at the end of the execution that a step is in."""
        done = self.lengths.batch_of(step) - self.first_batch(step)
        return min(step + self.size - done, self.lengths.end(step))

    def remark(self, name: str, num_steps: int | None) -> str | None:
        """Returns a warning if Keras takes more steps than `name` of `fit` says."""
        if not num_steps or not num_steps % self.size:
            return None
        return (
            f"fit has {name}={num_steps} and steps_per_execution={self.size}: where "
            "there are enough data, Keras rounds the first up to a multiple of the "
            "second, and here there are as many steps as it says"
        )
