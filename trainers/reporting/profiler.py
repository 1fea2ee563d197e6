"""A trace of some steps, for TensorBoard's profile plugin."""

from __future__ import annotations

import pathlib

import tensorflow as tf

from strategies.common.write_errors import Spell
from trainers.loop.loop import StepReport
from trainers.reporting.tensorboard import TRAIN

# Operations and how they are handed out, without every call of Python, which would be
# most of the trace and slow the steps down.
_OPTIONS = tf.profiler.experimental.ProfilerOptions(
    host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
)


class Profile:
    """Records what this process does between two steps. One at a time in a process."""

    def __init__(self, folder: pathlib.Path, spell: Spell):
        """Records nothing yet.

        Args:
          folder: of the run's event files.
          spell: told when the trace cannot be written.
        """
        self._folder = folder / TRAIN
        self._spell = spell
        self._is_recording = False

    def turn(self, report: StepReport) -> None:
        """Begins at the first step that this is called for, and ends at the second."""
        if not self._is_recording and not report.is_last:
            tf.profiler.experimental.start(str(self._folder), _OPTIONS)
            self._is_recording = True
        else:
            self.close()

    def close(self) -> None:
        """Writes what there is, if a trace was begun."""
        if self._is_recording:
            self._is_recording = False
            what = f"the trace in {self._folder} cannot be written"
            self._spell.attempt(what, tf.profiler.experimental.stop)
