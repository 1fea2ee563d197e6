"""Times of a task's steps by phase, for `--mode=explain`."""

import collections
import inspect
import logging
import math
import os
import pathlib
import time
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.common.files import write_json
from strategies.common.types import StepPhases, StepResults
from strategies.inner_loop.reduction import bytes_of
from trainers.loop.loop import StepEvent
from trainers.loop.parts import TrainingParts
from trainers.loop.timing import Clock

FOLDER = "step_phases"
SCHEMA_VERSION = 2

# Calls at the start of a run, which are slower than the rest.
WARM_UP_CALLS = 2
# Only the newest steps are kept one by one: a file of as many is about a megabyte.
_MOST_STEPS = 4_000
# Work between calls of the inner loop.
_KINDS = ("summary", "eval", "checkpoint")


class PhaseMeter:
    """Times of a task between its first calls and its last one. A callback.

    What a run does once, at its beginning or after its last step, is left out.
    """

    def __init__(self, task: str, parts: TrainingParts, clock: Clock):
        """Starts to count traces."""
        self._task = task
        self._parts = parts
        self._clock = clock
        self._num_calls = 0
        self._chief_seconds = 0.0
        self._begin: dict[str, float] = {}
        self._end: dict[str, float] = {}
        self._seconds_in_steps = 0.0
        # Newest calls: columns of steps by name, and seconds of these steps.
        self._calls: collections.deque[tuple[dict[str, np.ndarray], float]] = (
            collections.deque()
        )
        self._num_kept = 0
        self._num_operations = 0
        self._retracing = _RetracingCounter()

    def describe(self, graph: tf.Graph) -> None:
        """Counts the operations of the inner loop."""
        definition = graph.as_graph_def()
        # Bodies of loops and branches are functions.
        functions = definition.library.function
        self._num_operations = len(definition.node) + sum(
            len(function.node_def) for function in functions
        )

    def add_chief_seconds(self, seconds: float) -> None:
        """Adds a wait for the chief, outside of steps."""
        self._chief_seconds += seconds

    def __call__(self, event: StepEvent) -> None:
        self._num_calls += 1
        if self._num_calls == WARM_UP_CALLS:
            self._begin = self._totals()
        elif self._num_calls > WARM_UP_CALLS and not (event.is_last and self._end):
            self._keep(event.results)
            self._end = self._totals()

    def _keep(self, results: StepResults) -> None:
        """Keeps the times of a call, and forgets the oldest calls."""
        seconds, phases = results.step_seconds, results.phases
        self._seconds_in_steps += float(seconds.sum())
        if phases is None:
            return
        workers = results.workers
        if workers is None:
            workers = np.full(len(seconds), self._task)
        names = ("worker", *inspect.get_annotations(StepPhases))
        columns = dict(zip(names, (workers, *phases), strict=True))
        # A single call may have a million steps, those of each worker together.
        every = math.ceil(len(seconds) / _MOST_STEPS) or 1
        kept = {
            n: values[::every] for n, values in columns.items() if values is not None
        }
        self._calls.append((kept, float(seconds[::every].sum())))
        self._num_kept += len(kept["worker"])
        while self._num_kept > _MOST_STEPS:
            self._num_kept -= len(self._calls.popleft()[0]["worker"])

    def _totals(self) -> dict[str, float]:
        """Returns the time and the totals of this task so far, in seconds."""
        seconds = self._clock.seconds()
        return {
            "time": time.time(),
            "wall": time.perf_counter(),
            "chief": self._chief_seconds,
            "cpu": time.process_time(),
            "cpu_wait": cpu_wait_seconds(),
            "steps": float(self._parts.applied_steps()),
            "in_steps": self._seconds_in_steps,
            "num_traces_since": float(self._parts.loop_function.num_traces()),
            **{kind: seconds[kind] for kind in _KINDS},
        }

    def write(self, folder: pathlib.Path) -> None:
        """Writes the file of this task into the folder of a run."""
        self._retracing.end()
        path = folder / FOLDER
        path.mkdir(exist_ok=True, parents=True)
        write_json(path / f"{self._task}.json", self.content())

    def content(self) -> dict[str, Any]:
        """Returns the content of the file of this task."""
        totals = {name: self._end[name] - self._begin[name] for name in self._end}
        # Steps and blocks are by the machine's clock, which may be set.
        totals.pop("time", None)
        variables = self._parts.model.trainable_variables
        return {
            "schema_version": SCHEMA_VERSION,
            "task": self._task,
            "wall_seconds": totals.pop("wall", 0.0),
            "num_steps": int(totals.pop("steps", 0)),
            "seconds": {
                **totals,
                "in_kept_steps": sum(seconds for _, seconds in self._calls),
            },
            "num_retracing_warnings": self._retracing.count,
            "num_operations": self._num_operations,
            "num_variables": len(variables),
            # Only weights are sent between tasks.
            "variable_bytes": bytes_of([v.value for v in variables]),
            "num_machine_cores": os.cpu_count(),
            "steps": self._steps(),
            "blocks": [
                {"kind": kind, "start": start, "seconds": seconds}
                for kind, start, seconds in self._clock.blocks
                if kind in _KINDS
                and start >= self._begin.get("time", start)
                and start < self._end.get("time", start)
            ],
        }

    def _steps(self) -> dict[str, list[Any]]:
        """Returns the times of each kept step by name, lists of one length."""
        calls = [columns for columns, _ in self._calls]
        columns = {
            name: np.concatenate([call[name] for call in calls])
            for name in (calls[0] if calls else ())
        }
        return {
            name: (np.round(v, 7) if v.dtype == np.float64 else v).tolist()
            for name, v in columns.items()
        }


class _RetracingCounter(logging.Filter):
    """Counter of TensorFlow's warnings of functions that are traced again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._logger = tf.get_logger()
        self._level = self._logger.level
        # Otherwise a level above warnings would keep them from the filter.
        self._logger.setLevel(min(self._level, logging.WARNING))
        self._logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if "tf.function retracing" in record.getMessage():
            self.count += 1
        return record.levelno >= self._level

    def end(self) -> None:
        self._logger.removeFilter(self)
        self._logger.setLevel(self._level)


def cpu_wait_seconds() -> float:
    """Returns how long threads of this process were ready and had no core, in seconds.

    Zero where the system does not report it.
    """
    nanoseconds = 0
    for path in pathlib.Path("/proc/self/task").glob("*/schedstat"):
        try:
            nanoseconds += int(path.read_text(encoding="ascii").split()[1])
        # The thread has ended.
        except (OSError, IndexError):
            continue
    return 1e-9 * nanoseconds
