"""Evaluator task: evaluates checkpoints while the others train.

It has its own device and is no member of TensorFlow's cluster, so no task waits for it.
It reads the run folder, writes only tb/evaluator, and removes its shutdown file.
"""

import contextlib
import math
import pathlib
import time
from collections.abc import Callable

import tensorflow as tf

from models.objective import as_scalars
from strategies.cluster.probes import PeerProbe
from strategies.cluster.rendezvous import hold_port, wait_for_tasks
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import (
    ClusterIncompleteError,
    ExitCode,
    PeerLostError,
)
from strategies.common.write_errors import WriteErrorReporter
from trainers.config.config import Config
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.evaluation import Evaluated
from trainers.loop.parts import TrainingParts
from trainers.model.confusion_matrix import CONFUSION_MATRIX, draw_confusion
from trainers.reporting.metrics_writer import metrics_in_words
from trainers.reporting.tensorboard import EVALUATOR, Summaries, by_tag
from trainers.run_dir.checkpoint_manifest import DamagedError
from trainers.run_dir.run_dir import RunDir

_POLL_SECONDS = 0.5
_SECONDS_UNTIL_LOST = 5.0
# By the status in result.json. A run that a signal has ended may end with two codes.
_EXIT_CODES = {"completed": ExitCode.DONE, "diverged": ExitCode.DIVERGED}


def evaluator(config: Config, cluster: Cluster, console: Console) -> int:
    """Evaluates every checkpoint until the run ends, and returns its exit code.

    Raises:
      UsageError: The configuration cannot be run, or another process has the address of
        this task.
      ClusterIncompleteError: The chief did not start in time.
      PeerLostError: The chief is dead or unresponsive and has not written how the run
        ended.
    """
    # Nobody connects to it. Without it, a second evaluator would write the same points.
    with hold_port(cluster):
        return _evaluate_to_the_end(config, cluster, console)


def _evaluate_to_the_end(config: Config, cluster: Cluster, console: Console) -> int:
    folder = RunDir(
        pathlib.Path(config.run.run_dir or ""), config.tracking.tensorboard_dir
    )
    chief = _Chief(cluster, folder, config.strategy.peer_timeout_seconds)
    # The default strategy uses one device of this process.
    alone = create_strategy(Config(), Cluster())
    evaluator = _Evaluator(assemble(config, alone), folder, console)
    with PreemptionSignals() as signals:
        exit_code = chief.wait(
            config.strategy.startup_timeout_seconds, lambda: signals.requested
        )
        while not signals.requested:
            exit_code = chief.exit_code() if exit_code is None else exit_code
            # Includes checkpoints written just before the end, because the exit code
            # was read first.
            evaluator.evaluate_new(signals)
            if exit_code is not None:
                return exit_code
            time.sleep(_POLL_SECONDS)
        return signals.exit_code


class _Chief:
    """State of the run, as observed by a process outside of the cluster."""

    def __init__(self, cluster: Cluster, folder: RunDir, peer_timeout_seconds: float):
        self.addresses = {
            task: address
            for task, address in cluster.members().items()
            if address == cluster.computing[0]
        }
        ((task, address),) = self.addresses.items()
        self._needed = PeerProbe(
            task, address, _SECONDS_UNTIL_LOST, peer_timeout_seconds
        )
        self._folder = folder
        self._ending = pathlib.Path(folder.shutdown_path(cluster, cluster.task))
        # A shutdown file from before a resumption does not end this run.
        self._before = self._written()

    def wait(self, seconds: float, stop_requested: Callable[[], bool]) -> int | None:
        """Waits until the chief has started.

        Returns:
          The exit code of a run that ended before this task was started again.

        Raises:
          ClusterIncompleteError: The chief did not start, and the run is not over.
        """
        try:
            wait_for_tasks(
                self.addresses, seconds, lambda: stop_requested() or self.has_ended()
            )
        except ClusterIncompleteError:
            # Not before: an older result may be that of a run that is about to go on.
            by_result = self.exit_code_in_result()
            if by_result is None:
                raise
            return by_result
        return None

    def has_ended(self) -> bool:
        """Returns whether the chief has written a new shutdown file."""
        return self._written() not in (None, self._before)

    def exit_code(self) -> int | None:
        """Returns the exit code of the run; None while it continues.

        Raises:
          PeerLostError: The chief is dead or unresponsive.
        """
        if self.has_ended():
            exit_code = int(self._ending.read_text(encoding="utf-8"))
            # It stays where an evaluator may only read the folder.
            with contextlib.suppress(OSError):
                self._ending.unlink()
            return exit_code
        try:
            self._needed.require()
        except PeerLostError:
            # A chief whose TF_CONFIG names no evaluator writes no shutdown file.
            if (in_result := self.exit_code_in_result()) is None:
                raise
            return in_result
        return None

    def exit_code_in_result(self) -> int | None:
        """Returns the exit code of the run by its result.json; None if unknown."""
        result = self._folder.read_result() or {}
        return _EXIT_CODES.get(str(result.get("status")))

    def _written(self) -> tuple[int, int] | None:
        try:
            status = self._ending.stat()
        except FileNotFoundError:
            return None
        # Both together identify a new file even if the clock is coarse.
        return status.st_mtime_ns, status.st_ino


class _Evaluator:
    """Evaluation of each checkpoint, once."""

    def __init__(self, parts: TrainingParts, folder: RunDir, console: Console):
        self._parts = parts
        self._console = console
        self._folder = folder
        self._checkpoints = parts.checkpoints(folder.checkpoints)
        # An evaluator that is started again goes on where the last one was.
        self._done = _steps_in(f"{folder.tensorboard}/{EVALUATOR}")
        self._write_errors = WriteErrorReporter(console)
        self._summaries: Summaries | None = None

    def evaluate_new(self, signals: PreemptionSignals) -> None:
        """Evaluates new checkpoints by their steps, until a signal arrives."""
        steps = self._checkpoints.steps()
        # A rollback removes checkpoints, and their steps are trained and saved again.
        self._done &= {*steps}
        for step in steps:
            if step in self._done or signals.requested:
                continue
            # Before the attempt: a damaged checkpoint is not tried again.
            self._done.add(step)
            try:
                self._checkpoints.restore(step)
            except DamagedError as error:
                self._console.warn(f"checkpoint of step {step} is passed over: {error}")
                continue
            self._report(step, self._parts.evaluation.run())

    def _report(self, step: int, evaluated: Evaluated) -> None:
        # Created with the first result, so that a run without one has no empty event
        # file.
        if self._summaries is None:
            self._summaries = Summaries(
                self._folder.tensorboard, self._write_errors, (EVALUATOR,)
            )
        means, confusion = as_scalars(evaluated.means), evaluated.confusion
        finite = {tag: v for tag, v in by_tag(means).items() if math.isfinite(v)}
        self._summaries.scalars(EVALUATOR, finite, step)
        if confusion is not None:
            picture = draw_confusion(confusion, self._parts.data.class_names)
            self._summaries.image(EVALUATOR, CONFUSION_MATRIX, picture, step)
        if self._summaries.flush():
            self._write_errors.end("summaries")
        self._console.say(f"eval  | step {step:>7} | {metrics_in_words(means)}")


def _steps_in(events: str) -> set[int]:
    """Returns the steps of all points in a folder of event files, perhaps at a URL."""
    found = set()
    # The last record of a process that was killed may be a part, and a URL may not
    # answer: then points are written twice.
    with contextlib.suppress(tf.errors.OpError):
        for path in tf.io.gfile.glob(f"{events}/events.out.tfevents.*"):
            with contextlib.suppress(tf.errors.DataLossError):
                for record in tf.data.TFRecordDataset(path):
                    event = tf.compat.v1.Event.FromString(record.numpy())
                    if event.HasField("summary"):
                        found.add(event.step)
    return found
