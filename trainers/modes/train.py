"""Training (`--mode=train`), the same program on every task that trains."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from contextlib import AbstractContextManager
from typing import Any

from strategies.cluster.failure_detection import monitor_workers
from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.files import is_url, write_atomically
from strategies.common.write_errors import WriteErrorReporter
from strategies.processes.parent import has_launcher
from trainers.config.config import Config
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.fault_tolerance.watchdog import PROGRAM, Watchdog
from trainers.keras_program.epochs import Epochs
from trainers.keras_program.program import Program
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.parts import TrainingParts
from trainers.loop.timing import Clock
from trainers.modes.callbacks_of_run import epochs_of_run
from trainers.modes.keras_training import KerasTraining
from trainers.modes.same_command import require_same_command, require_same_data
from trainers.modes.training_run import TrainingRun
from trainers.reporting.metrics import ProcessMetrics, RunMetrics
from trainers.reporting.null_reporter import NullReporter
from trainers.reporting.reporter import Reporter
from trainers.reporting.result import Origin
from trainers.reporting.step_phases import PhaseMeter
from trainers.reporting.tracking.tracking import Tracking
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.training_dir import FolderGoneError, TrainingDir, default_path
from trainers.user_code import errors_of_steps


def train(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Trains on this task, with all other tasks that train; returns the exit code.

    Raises:
      UsageError: The configuration cannot be run; nothing has been written.
    """
    if config.model.script is not None:
        config = _with_absolute_paths(config)
    with TrainingTask(config, cluster, console) as task:
        if config.model.script is not None:
            program = Program(config, cluster, task.strategy, console, task.train)
            task.exit_code = program.run()
        else:
            with errors_of_steps():
                parts = assemble(task.config, task.strategy)
                epochs = epochs_of_run(parts, cluster.is_chief)
                task.exit_code = task.train(parts, epochs)
            if epochs is not None and task.exit_code == ExitCode.DONE:
                # Otherwise the run has closed it.
                task.strategy.close()
    return task.exit_code


def _with_absolute_paths(config: Config) -> Config:
    """Returns a configuration that writes to the same folders after an `os.chdir`.

    A program may change the folder before its `fit`, which begins the run.
    """
    events = config.tracking.tensorboard_dir
    if events is not None and not is_url(events):
        events = os.path.abspath(events)
    folder = config.run.run_dir or default_path(config)
    return config.replace(run_dir=os.path.abspath(folder), tensorboard_dir=events)


class TrainingTask:
    """Strategy, watchdog and folder of a task. A context manager.

    At its end it tells the other tasks with which exit code the run has ended.
    """

    def __init__(self, config: Config, cluster: Cluster, console: Console):
        """Creates the strategy, which waits for the other tasks.

        Raises:
          UsageError: The configuration cannot be run; nothing has been written.
        """
        self.config, self.cluster, self.console = config, cluster, console
        self.exit_code = ExitCode.BUG
        self._folder = RunDir(pathlib.Path(config.run.run_dir or ""))
        if cluster.is_chief:
            self._folder = folder = TrainingDir(config)
            self.config = folder.with_decisions(config)
        self._tracking = Tracking(config.tracking, console)
        self.strategy = create_strategy(config, cluster)
        traits = self.strategy.traits
        has_own_command = not has_launcher()
        is_program = config.model.script is not None
        if traits.loops_together and has_own_command:
            require_same_command(config, cluster, self.strategy, console)
        # A program may train on data that its task alone knows.
        self._is_compared = traits.loops_together and (has_own_command or is_program)
        self._errors = WriteErrorReporter(console, "they see that the chief is gone")
        self._watchdog = Watchdog(
            config.guard.stall_timeout_seconds,
            cluster,
            console,
            self._shutdown_servers,
        )
        self._clock = Clock(self._watchdog.note)
        if is_program:
            self._watchdog.note(PROGRAM)
        # One object for all calls of `fit`, because a request may come between two.
        self._signals = PreemptionSignals(traits.loops_together)
        # The first `fit` sets it: later ones begin with trained weights.
        self._origin: Origin | None = None
        # Shared by all calls of `fit`.
        self._metrics = ProcessMetrics()
        self._guards = contextlib.ExitStack()

    def __enter__(self) -> TrainingTask:
        self._guards.enter_context(self._watchdog)
        self._guards.enter_context(
            _lost_workers_tolerated(self.config, self.cluster, self.console)
        )
        return self

    def train(self, parts: TrainingParts, epochs: Epochs | None = None) -> ExitCode:
        """Trains the parts of a run to their last step, and returns the exit code.

        The parts are under this task's strategy. Only a program and a run with
        --callbacks have epochs.
        """
        if self._is_compared:
            require_same_data(parts, self.cluster, self.console)
        phases = None
        if self.config.report.step_phases:
            phases = PhaseMeter(self.cluster.task, parts, self._clock)
        metrics = RunMetrics(
            clock=self._clock,
            process=self._metrics,
            pipeline=parts.pipeline,
            results=parts.results,
            phases=phases,
        )
        kind = KerasTraining if self.config.model.keras_fit else TrainingRun
        run = kind(
            parts=parts,
            reporter=self._reporter(parts, metrics),
            metrics=metrics,
            watchdog=self._watchdog,
            signals=self._signals,
            folder=self._folder,
            epochs=epochs,
        )
        exit_code = ExitCode.DONE
        try:
            exit_code = run.run()
            return exit_code
        finally:
            if self.config.model.script is not None:
                # The program's own code follows, for any time.
                self._watchdog.note(PROGRAM)
                if exit_code == ExitCode.DONE:
                    self._signals.give_back_passed_on()

    def _reporter(self, parts: TrainingParts, metrics: RunMetrics) -> NullReporter:
        if not isinstance(self._folder, TrainingDir):
            return NullReporter(parts, self.cluster, self.console)
        # Before the reporter restores a checkpoint.
        self._origin = self._origin or Origin.of(parts)
        return Reporter(
            parts,
            self.cluster,
            self.console,
            self._folder,
            self._tracking,
            metrics,
            self._origin,
        )

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._guards.__exit__(kind, error, trace)
        # Any other error is a bug or a lost task, which others notice by themselves.
        if error is None or isinstance(error, UsageError):
            self._end(error)
            # No other task waits for this process now.
            self._tracking.wait()

    def _end(self, error: UsageError | None) -> None:
        """Tells the other tasks how the run has ended."""
        # Other tasks see that the chief is gone. A shutdown file would make the folder
        # anew.
        if isinstance(error, FolderGoneError):
            return
        exit_code = self.exit_code if error is None else ExitCode.USAGE
        self._shutdown_servers(exit_code)
        # A run that was refused before it began has no folder.
        has_begun = self.cluster.is_chief and self._folder.holds_a_run
        if has_begun and EVALUATOR in self.cluster.addresses:
            path = self._folder.shutdown_path(self.cluster, f"{EVALUATOR}-0")
            self._errors.attempt(
                "the evaluator cannot be told how the run has ended",
                lambda: write_atomically(pathlib.Path(path), str(exit_code)),
            )

    def _shutdown_servers(self, exit_code: int) -> None:
        self._errors.attempt(
            "some tasks cannot be told how the run has ended",
            lambda: self.strategy.shutdown_servers(
                functools.partial(self._folder.shutdown_path, self.cluster), exit_code
            ),
        )


def _lost_workers_tolerated(
    config: Config, cluster: Cluster, console: Console
) -> AbstractContextManager[None]:
    """Returns a context in which dead workers of a parameter server run are tolerated.

    The context does nothing for strategies without server jobs.
    """
    traits = config.strategy.traits
    if not traits.server_jobs:
        return contextlib.nullcontext()
    num_workers = len(cluster.addresses["worker"])
    # An update of a synchronous run needs all workers except the backup workers.
    num_required = config.strategy.num_required(num_workers)
    patience_seconds = return_seconds = config.strategy.peer_timeout_seconds
    if has_launcher():
        # It starts lost workers again, or ends the run. To start takes longer than
        # an answer.
        return_seconds = max(patience_seconds, config.strategy.startup_timeout_seconds)
    return monitor_workers(
        cluster, num_required, console.warn, patience_seconds, return_seconds
    )
