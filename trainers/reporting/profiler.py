"""Trace of some steps for TensorBoard's profile plugin."""

from collections.abc import Sequence

import tensorflow as tf

from strategies.common.write_errors import WriteErrorReporter
from trainers.loop.loop import StepEvent
from trainers.reporting.tensorboard import TRAIN
from trainers.run_dir.event_dir import remote_errors

# Operations and their scheduling. Python calls are left out, because they would
# dominate the trace and slow the steps down.
_OPTIONS = tf.profiler.experimental.ProfilerOptions(
    host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
)


class Profile:
    """Trace of this process between two steps. A process can record one at a time."""

    def __init__(
        self,
        folder: str,
        write_errors: WriteErrorReporter,
        steps: Sequence[int] | None,
    ):
        """Prepares the trace; records nothing.

        `steps` are the step before the trace and its last step; None for no trace.
        """
        self._steps = steps
        self._folder = f"{folder}/{TRAIN}"
        self._write_errors = write_errors
        self._is_recording = False

    def turn(self, event: StepEvent) -> None:
        """Starts the trace after its first step, and ends it at its second one."""
        # A rollback may lead to a step before the first one while it is recorded. A run
        # that is resumed between the two begins no trace: it would have no end.
        self.close()
        # A run that ends at the first of the two steps has nothing to record.
        if self._steps and event.step == self._steps[0] and not event.is_last:
            tf.profiler.experimental.start(self._folder, _OPTIONS)
            self._is_recording = True

    def close(self) -> None:
        """Writes the trace so far, if one was started."""
        if self._is_recording:
            # Before the attempt, because a failed stop must not be repeated.
            self._is_recording = False
            what = f"the trace in {self._folder} cannot be written"
            self._write_errors.attempt(what, self._stop)

    def _stop(self) -> None:
        with remote_errors(self._folder):
            tf.profiler.experimental.stop()
