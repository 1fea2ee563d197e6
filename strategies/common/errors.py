"""Errors of the program and the exit codes of the entry point."""

import enum
import re
import sys

# Messages without soft placement. From eager code: `Could not satisfy device
# specification '/job:localhost/replica:0/task:0/device:GPU:0'. enable_soft_placement=0.
# [...] All available devices [...].` From a function: `Unable to find any devices for
# spec /device:GPU:0`, or `Cannot assign a device for operation name: {{node name}} was
# explicitly assigned to /device:GPU:0 but available devices are [...]`.
_MISSING_DEVICE = re.compile(
    r"(?:Could not satisfy (?:explicit )?device specification '|any devices for spec "
    r"|was explicitly assigned to )(?P<device>[\w/:*]+)"
)


class ExitCode(enum.IntEnum):
    """Exit codes that the entry point returns to the shell."""

    DONE = 0
    BUG = 1
    USAGE = 2
    DIVERGED = 3
    # A verification found that two results differ.
    DIFFERENT = 4
    # A shell reports the death by signal N as 128 + N: SIGINT is 2, SIGTERM 15.
    INTERRUPTED = 130
    # `strategies.cluster.watchdog_process` ends a process by signal 10 = 138 - 128, so
    # that this code also appears where Python itself cannot exit any more.
    PEER_LOST = 138
    TERMINATED = 143


class DivergedError(Exception):
    """Error for a loss, a gradient or a weight that is not finite."""

    def __init__(self, step: int, what: str, num_rollbacks: int = 0):
        """Builds the message, which names the step.

        Args:
          step: Number of the failed update, counted from one.
          what: Start of the message; the number of the step follows it.
          num_rollbacks: Number of earlier rollbacks of the run.
        """
        times = "time" if num_rollbacks == 1 else "times"
        before = f", after going back {num_rollbacks} {times}" if num_rollbacks else ""
        super().__init__(
            f"{what} step {step}{before}: training has diverged; lower "
            "--learning_rate, set --clip_global_norm, or check the data."
        )
        self.step = step
        self.what = what


class NotSavedError(Exception):
    """Error for the last checkpoint or export of a run that could not be written."""

    def __init__(self, what: str, words: str, where: str):
        """Builds the message, which names the remedy.

        Args:
          what: Name of the unwritten file or object, the start of the message.
          words: Error message of the operating system.
          where: Clause that ends in the disk without space.
        """
        super().__init__(
            f"{what} could not be written ({words}){where}, then continue with "
            "--resume=auto."
        )


class StopRequested(Exception):
    """Request of a signal to end the run."""

    def __init__(self, exit_code: ExitCode):
        super().__init__(f"stopped by {exit_code.name.lower()}")
        self.exit_code = exit_code


class UsageError(ValueError):
    """Error that the user can correct, such as a flag, a file or a missing device.

    The message is one line with the received value, the accepted values and the
    change to make. The entry point prints it and ends with exit code 2.
    """

    # A private mark of AutoGraph, which raises other errors of a `tf.function` as a
    # StagingError with long words of its own (tensorflow/python/autograph/impl/api.py,
    # `_attach_error_metadata`).
    ag_pass_through = True


class PeerLostError(Exception):
    """Error for a dead or unresponsive task; restarting all tasks may help."""

    # Schedulers restart a task that ends with this exit code.
    exit_code = ExitCode.PEER_LOST


class ClusterIncompleteError(PeerLostError):
    """Error for a task that did not start in time."""


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether Python or TensorFlow got no memory."""
    # The error may be of a process that never imports TensorFlow, nor does this check.
    tensorflow = sys.modules.get("tensorflow")
    return isinstance(error, MemoryError) or (
        tensorflow is not None
        and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    )


def missing_device(error: BaseException) -> str | None:
    """Returns the device that an operation names and this process lacks, if any."""
    # The coordinator of parameter servers wraps some errors.
    found = _MISSING_DEVICE.search(str(getattr(error, "original_exception", error)))
    return found and found["device"]
