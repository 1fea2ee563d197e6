"""Numbers of steps of epochs, and of executions between calls of callbacks."""

import dataclasses

from strategies.common.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True)
class EpochLengths:
    """Numbers of steps of epochs, which Keras also ends where its data end.

    The next epoch begins with the first batch again
    (keras/src/trainers/epoch_iterator.py, `_enumerate_iterator`). A step or an epoch is
    given as the number of those before it.

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

    def equal(self, num_steps: int) -> int:
        """Returns the number of steps of every epoch of a training.

        Raises:
          UsageError: Epochs have several lengths.
        """
        if self.of_all is not None:
            return self.of_all
        # The last epoch of a pass is the shorter one.
        if num_steps <= self.start(self.epochs_per_pass - 1):
            return self.most_steps
        raise UsageError(
            f"fit has steps_per_epoch={self.most_steps} of {self.num_batches} "
            "batches, so that its epochs have several lengths, which the arm keras "
            "does not take: leave steps_per_epoch out."
        )

    def remark(self, num_steps: int) -> str | None:
        """Returns a warning if the data end before an epoch does; None otherwise."""
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
        """Returns the number of steps before an epoch."""
        # Each pass begins an epoch, also after a shorter epoch.
        passes, of_pass = divmod(epoch, self.epochs_per_pass)
        return passes * self.num_batches + of_pass * self.most_steps

    def end(self, step: int) -> int:
        """Returns the number of steps at the end of the epoch of a step."""
        return self.start(self.epoch_of(step) + 1)

    def epoch_of(self, step: int) -> int:
        """Returns the epoch of a step."""
        passes, of_pass = divmod(step, self.num_batches)
        return passes * self.epochs_per_pass + of_pass // self.most_steps

    def batch_of(self, step: int) -> int:
        """Returns the number of earlier steps in the epoch of a step."""
        return step - self.start(self.epoch_of(step))


@dataclasses.dataclass(frozen=True, slots=True)
class Executions:
    """Executions of several steps (`steps_per_execution`), which begin with epochs.

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
