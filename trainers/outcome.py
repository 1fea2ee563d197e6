"""Ways in which training ends other than by reaching its last step."""

from __future__ import annotations

import enum
import pathlib
import re

from strategies.rendezvous import PeerLostError

# TensorFlow 2.21 begins the message of an error in a function with where the operation
# was made: "Graph execution error:", "Detected at node while/add defined at (most
# recent call last):", and a line for each call.
_WHERE_MADE = re.compile(
    r'^(?:Graph execution error:|Detected at node .* defined at \(.*\):|  File ".*)$',
    re.MULTILINE,
)


class ExitCode(enum.IntEnum):
    """What the entry point returns to the shell."""

    DONE = 0
    BUG = 1
    USAGE = 2
    DIVERGED = 3
    DIFFERENT = 4
    INTERRUPTED = 130
    PEER_LOST = PeerLostError.exit_code
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


def what_happened(error: BaseException) -> str:
    """Returns an error's message, from the cause on, in one line."""
    message = str(error)
    cause = _WHERE_MADE.sub("", message)
    return " ".join((cause if cause.strip() else message).split())
