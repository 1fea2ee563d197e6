"""Reporter of tasks other than the chief, which write no files."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import DivergedError, NotSavedError
from strategies.common.types import LoopFunction
from trainers.loop.evaluation import Evaluated
from trainers.loop.loop import StepEvent
from trainers.loop.parts import TrainingParts


class NullReporter:
    """The interface of reporters; an instance of this class reports nothing.

    All tasks run the same program with a reporter each. None of these methods
    communicates with another task, so that a task whose reporter does nothing meets the
    others at every collective operation.
    """

    def __init__(self, parts: TrainingParts, cluster: Cluster, console: Console):
        """Stores its parts; touches no file."""
        self._parts = parts
        self._cluster = cluster
        self._console = console

    @property
    def num_rollbacks(self) -> int:
        """Number of rollbacks of the run so far."""
        return 0

    def restore_newest(self) -> bool:
        """Restores the newest checkpoint, and returns whether the run is complete."""
        return False

    def begin(self, first_step: int) -> None:
        """Creates the run folder and describes the run.

        `first_step` is the number of updates already applied.
        """
        self._console.say(f"{self._cluster.task} trains from step {first_step}")

    def describe(self, graph: tf.Graph) -> None:
        """Writes the graph of the inner loop, and settings, to TensorBoard."""

    def record_placement(self, loop_function: LoopFunction) -> LoopFunction:
        """Returns an inner loop that reports placement, if that is requested."""
        return loop_function

    def start_progress(self, first_step: int) -> None:
        """Shows a progress bar that starts at a step."""

    def show_progress(self, event: StepEvent) -> None:
        """Advances the progress bar after each call of the inner loop."""

    def profile(self, event: StepEvent) -> None:
        """Starts a trace at the first call, and ends it at the second one."""

    def record_step(self, event: StepEvent) -> None:
        """Writes all values of a step."""

    def write_metrics(self, event: StepEvent) -> None:
        """Writes the metrics since the call before."""

    def write_histograms(self, event: StepEvent) -> None:
        """Writes histograms of gradients, weights and activations."""

    def write_evaluation(self, event: StepEvent, evaluated: Evaluated) -> None:
        """Writes the result of an evaluation, and exports the best model."""

    def restored_state(self) -> Mapping[str, Any]:
        """Returns the state of the restored checkpoint; empty for a new run."""
        return {}

    def save_checkpoint(self, program: Mapping[str, Any]) -> None:
        """Saves a checkpoint of the current state, with that of a program's `fit`.

        A full disk causes a warning; the run continues and tries again at the next
        checkpoint.
        """

    def roll_back(self, error: DivergedError) -> int | None:
        """Restores a checkpoint from before a divergence, with a lower learning rate.

        Returns:
          Step of the checkpoint; None if there is none to go back to.
        """
        del error
        return None

    def resume_after_rollback(self, step: int) -> None:
        """Discards the reports that follow the checkpoint of a rollback."""
        self._console.say(f"{self._cluster.task} goes back to step {step}")

    def require_folder(self) -> None:
        """Raises FolderGoneError if the run folder was deleted or moved."""

    def require_saved(self) -> None:
        """Raises NotSavedError if the last checkpoint could not be written."""

    def export_last(self) -> None:
        """Writes the model at the end of training, if `--export` is given.

        Raises:
          NotSavedError: The disk has no room for it.
        """

    def fail(self, error: DivergedError | NotSavedError) -> None:
        """Prints why the run has failed."""

    def write_result(self, status: str) -> bool:
        """Writes the result, and returns whether the disk had room for it."""
        del status
        return True

    def print_summary(self, status: str) -> None:
        """Prints how the run has ended."""
        del status
        step = self._parts.applied_steps()
        self._console.say(f"{self._cluster.task} ends at step {step}")
