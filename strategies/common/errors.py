"""Errors of the program and the exit codes of the entry point."""

from __future__ import annotations

import enum
import pathlib


class ExitCode(enum.IntEnum):
    """What the entry point returns to the shell."""

    DONE = 0
    BUG = 1
    USAGE = 2
    DIVERGED = 3
    DIFFERENT = 4
    INTERRUPTED = 130
    PEER_LOST = 138
    TERMINATED = 143


class DivergedError(Exception):
    """A loss, a gradient or a weight is not finite."""

    def __init__(self, step: int, what: str, num_rollbacks: int = 0):
        """Says at which step.

        Args:
          step: the update that failed, counted from one.
          what: begins the message, and is followed by the step.
          num_rollbacks: how often the run has gone back before.
        """
        times = f"time{'s'[: num_rollbacks != 1]}"
        before = f", after going back {num_rollbacks} {times}" if num_rollbacks else ""
        super().__init__(
            f"{what} step {step}{before}: training has diverged; lower "
            "--learning_rate, set --clip_global_norm, or check the data."
        )
        self.step = step
        self.what = what


class NotSavedError(Exception):
    """The last checkpoint of a run could not be written."""

    def __init__(self, run_folder: pathlib.Path, words: str, kept_step: int | None):
        """Says what is left.

        Args:
          run_folder: of the run.
          words: what the system says.
          kept_step: of the newest checkpoint there is; None if there is none.
        """
        left = "none" if kept_step is None else f"that of step {kept_step}"
        super().__init__(
            f"the last checkpoint could not be written ({words}), and the newest in "
            f"{run_folder} is {left}: free space on its disk, then continue with "
            "--resume=auto."
        )


class StopRequested(Exception):
    """A signal asked the run to end."""

    def __init__(self, exit_code: ExitCode):
        super().__init__(f"stopped by {exit_code.name.lower()}")
        self.exit_code = exit_code


class UsageError(ValueError):
    """Something the user can correct: a flag, a file, a device that is missing.

    The message is one line that says what was received, what is accepted and
    what to change. The entry point prints it and ends with exit code 2.
    """


class PeerLostError(Exception):
    """Another task of the cluster is gone. Starting all of them again may help."""

    # Schedulers restart a task that ends with this.
    exit_code = ExitCode.PEER_LOST


class ClusterIncompleteError(PeerLostError):
    """Some task did not start in time."""
