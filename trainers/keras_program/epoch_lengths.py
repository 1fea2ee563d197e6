"""Numbers of steps of the epochs of a `fit`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class EpochLengths:
    """Numbers of steps of epochs, which Keras also ends where its data end.

    The next epoch begins with the first batch again
    (keras/src/trainers/epoch_iterator.py, `_enumerate_iterator`).

    Attributes:
      most_steps: Number of steps of an epoch that is not cut short.
      num_batches: Number of batches of a pass over the data.
    """

    most_steps: int
    num_batches: int

    @property
    def epochs_per_pass(self) -> int:
        """Number of epochs of a pass over the data."""
        # Division that rounds up: the last epoch of a pass may be shorter.
        return -(-self.num_batches // self.most_steps)

    @property
    def of_all(self) -> int | None:
        """Number of steps of every epoch; None if epochs have several lengths."""
        shortest = min(self.most_steps, self.num_batches)
        return None if self.num_batches % shortest else shortest

    def remark(self, num_steps: int) -> str | None:
        """Returns a warning if the data end before an epoch does; None otherwise.

        Args:
          num_steps: Number of steps of all epochs.
        """
        if self.most_steps <= self.num_batches and (
            self.of_all is not None or num_steps <= self.num_batches
        ):
            return None
        which = "each epoch"
        if self.epochs_per_pass > 1:
            which = f"one of {self.epochs_per_pass} epochs"
        steps = self.num_batches - self.start(self.epochs_per_pass - 1)
        return (
            f"fit has steps_per_epoch={self.most_steps} of data of {self.num_batches} "
            f"batches: as in Keras, {which} ends with the data, after "
            f"{steps} of {self.most_steps} steps; repeat the data, or leave "
            "steps_per_epoch out"
        )

    def start(self, epoch: int) -> int:
        """Returns the number of steps before an epoch.

        Args:
          epoch: Number of earlier epochs.
        """
        passes, of_pass = divmod(epoch, self.epochs_per_pass)
        return passes * self.num_batches + of_pass * self.most_steps

    def epoch_of(self, step: int) -> int:
        """Returns the number of the epoch, from 0, that a step is in.

        Args:
          step: Number of earlier steps.
        """
        passes, of_pass = divmod(step, self.num_batches)
        return passes * self.epochs_per_pass + of_pass // self.most_steps

    def batch_of(self, step: int) -> int:
        """Returns the number of earlier steps in the epoch of a step.

        Args:
          step: Number of earlier steps.
        """
        return step - self.start(self.epoch_of(step))
