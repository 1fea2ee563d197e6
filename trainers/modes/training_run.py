"""Training from the first step to the result, the same on every task.

The chief differs from the other tasks only in its reporter, which writes the run
folder; theirs does nothing. A reporter communicates with no other task: all collective
operations outside of steps are in this module, in the order in which they happen, apart
from those around the callbacks and calls of a Keras program.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.common.errors import (
    DivergedError,
    ExitCode,
    NotSavedError,
    StopRequested,
)
from strategies.common.types import SummaryLevel
from trainers.fault_tolerance.non_finite import (
    describe_divergence,
    require_finite_weights,
)
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.fault_tolerance.rollback import agree_on_step
from trainers.fault_tolerance.watchdog import Watchdog
from trainers.inputs.sources import read_counter
from trainers.keras_program.epoch_callbacks import TrainingStopped, callbacks_of
from trainers.keras_program.epochs import Epochs
from trainers.loop.loop import Callback, StepEvent, When, at, every, run_loop
from trainers.loop.parts import TrainingParts
from trainers.modes.keras_step import record_keras_step
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.null_reporter import NullReporter
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.train_state import is_stopped


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingRun:
    """Training of one task, from the first step to the result.

    Attributes:
      parts: Model, data, strategy and loop of the run.
      reporter: Writer of the run folder, or a `NullReporter`.
      metrics: Measurements of the run.
      watchdog: Watchdog of this process.
      signals: Requests to stop this process.
      folder: Folder of the run.
      epochs: Epochs at whose ends callbacks of Keras run; None without any.
    """

    parts: TrainingParts
    reporter: NullReporter
    metrics: RunMetrics
    watchdog: Watchdog
    signals: PreemptionSignals
    folder: RunDir
    epochs: Epochs | None = None

    def run(self) -> ExitCode:
        """Restores the newest checkpoint, trains, and reports how the run has ended."""
        strategy, reporter = self.parts.strategy, self.reporter
        self.watchdog.note("startup")
        self.watchdog.count(self.parts.step, read_counter())
        is_complete, was_stopped = self._restore()
        if self.epochs is not None:
            self.epochs.restore(reporter.restored_state(), was_stopped)
            self.epochs.read_again(is_complete, self.watchdog.progress)
        if is_complete:
            self._repeat_end_of_fit()
            strategy.wait_until_all_are_done()
            return ExitCode.DONE
        # From here on the folder is locked and written.
        reporter.begin(self.parts.applied_steps())
        status, exit_code = "failed", ExitCode.BUG
        try:
            status, exit_code = self._train()
            reporter.require_saved()
            # A stopped run may be resumed; only a completely trained model is exported.
            if exit_code == ExitCode.DONE:
                reporter.export_last()
        except DivergedError as error:
            status, exit_code = "diverged", ExitCode.DIVERGED
            reporter.fail(error)
        except NotSavedError as error:
            # All steps are done, but their last checkpoint or export is not.
            status, exit_code = "failed", ExitCode.USAGE
            reporter.fail(error)
        except Exception:
            status = "failed"
            # Explains any failed write, if the folder is gone.
            reporter.require_folder()
            raise
        except BaseException:
            # Ctrl-C within the last export, which a run that is continued repeats.
            status = "preempted" if status == "completed" else status
            raise
        finally:
            # In `finally`: every end of a run writes a result, an unexpected exception
            # included.
            if not reporter.write_result(status):
                exit_code = ExitCode.USAGE
            # A program may train again after this `fit`.
            if self.epochs is not None and exit_code == ExitCode.DONE:
                strategy.pause()
            else:
                strategy.close()
        reporter.print_summary(status)
        if self.metrics.phases is not None and exit_code == ExitCode.DONE:
            self.metrics.phases.write(self.folder.path)
        # The other processes end only when the chief has written its files.
        self._wait_for_chief()
        strategy.wait_until_all_are_done()
        return exit_code

    def _restore(self) -> tuple[bool, bool]:
        """Restores the newest checkpoint on every task.

        Returns:
          Whether the run is complete, and whether a callback has stopped its training.
        """
        is_complete = self.reporter.restore_newest()
        was_stopped = is_stopped(self.reporter.restored_state())
        ends = tf.Variable([int(is_complete), int(was_stopped)], dtype=tf.int64)
        # Makes the replicas of all processes equal to the restored state.
        self.parts.strategy.broadcast_from_chief([*self.parts.state_variables(), ends])
        self.parts.learning_rate_scale.hold()
        is_complete, was_stopped = map(bool, ends.numpy())
        return is_complete, was_stopped

    def _repeat_end_of_fit(self) -> None:
        """Repeats the end of a `fit` that an earlier process has completed.

        Callbacks such as EarlyStopping change weights after the last checkpoint, and
        the program continues with the changed ones.
        """
        if self.epochs is not None and self.epochs.fit is not None:
            self.epochs.begin()
            self.epochs.finish()

    def _train(self) -> tuple[str, ExitCode]:
        """Trains until the last step or a signal, with rollbacks after divergence.

        Returns:
          Status of the run for result.json, and its exit code.

        Raises:
          DivergedError: A step has diverged and there is no checkpoint to go back to.
        """
        is_first = self.parts.applied_steps() == self.parts.order.first_step
        if is_first:
            record_keras_step(self.parts, self.folder.path)
        if self.epochs is not None:
            self.epochs.begin()
            if self.epochs.is_stopped:
                # Killed after its last checkpoint, and before its result.
                self.epochs.finish()
                return "completed", ExitCode.DONE
        if is_first and self._begins_with_checkpoint():
            # Callbacks that go back to it have begun.
            self._save_checkpoint()
            self._wait_for_chief()
        batches = self._batches()
        self.metrics.clock.started()
        self._trace(batches)
        with self.signals:
            try:
                self._advance_with_rollbacks(batches)
            except StopRequested as stop:
                # The checkpoint reads variables, which must be equal in all processes.
                self.parts.strategy.average_replica_variables()
                self._save_checkpoint()
                return "preempted", stop.exit_code
            except TrainingStopped as stopped:
                self._report_stop(stopped.event)
            if self.epochs is not None:
                self.epochs.finish()
            return "completed", ExitCode.DONE

    def _trace(self, batches: Any) -> None:
        """Traces the inner loop, and describes its graph."""
        with self.metrics.clock.measure("trace"):
            graph = self.parts.loop_function.trace(batches)
        if self.epochs is not None:
            self.epochs.follow(graph)
        if self.metrics.phases is not None:
            self.metrics.phases.describe(graph)
        self.reporter.describe(graph)

    def _advance_with_rollbacks(self, batches: Any) -> None:
        """Trains to the last step, from an earlier checkpoint after each divergence.

        Raises:
          StopRequested: A process received a signal.
          TrainingStopped: A callback of a program has stopped the training.
          DivergedError: A step has diverged and there is no checkpoint to go back to.
        """
        while True:
            try:
                self._advance(batches)
                return
            except DivergedError as error:
                self._roll_back(error)
                batches = self._batches()

    def _begins_with_checkpoint(self) -> bool:
        """Returns whether a checkpoint is saved before the first step."""
        # Most learning rates that are too large diverge before the first regular
        # checkpoint. This one also has the number of rows that a file had at first, for
        # a run that is killed before a later one.
        rolls_back = self.parts.config.guard.rolls_back
        return rolls_back or bool(self.epochs and self.epochs.callbacks.adds_to_file)

    def _report_stop(self, event: StepEvent) -> None:
        """Writes the metrics and the checkpoint of the step where a callback stops."""
        # They are written already where it is also the last step of the run.
        if not self.metrics.window.is_empty:
            self.reporter.write_metrics(event)
        self._save_checkpoint()

    def _batches(self) -> Any:
        """Opens the input at the next step."""
        first_step = self.parts.applied_steps()
        return self.parts.strategy.distribute(self.parts.batches(first_step))

    def _advance(self, batches: Any) -> None:
        """Trains to the last step.

        Raises:
          StopRequested: A process received a signal.
          DivergedError: A step has diverged.
        """
        parts = self.parts
        self.watchdog.begin(parts.applied_steps())
        self.reporter.start_progress(parts.applied_steps())
        loop_function = self.reporter.record_placement(parts.loop_function)
        run_loop(
            dataclasses.replace(parts, loop_function=loop_function),
            batches,
            # The signals are last, because they raise: the callbacks of the step have
            # run.
            [*self._callbacks(), When(self.signals)],
            self.metrics.clock,
            self.metrics.process.counters,
            diagnose=functools.partial(
                describe_divergence, parts.model, parts.layer_state
            ),
            stop_requested=lambda: self.signals.requested,
        )

    def _callbacks(self) -> list[When]:
        """Returns the callbacks of this run, in the order in which they run.

        The checkpoint is last, when all other files of the step are written, so that a
        run that is killed and resumed has lost no report from before the checkpoint.
        """
        config, reporter = self.parts.config.report, self.reporter
        callbacks: list[When] = [
            # First, so that the watchdog knows the step before slow callbacks run.
            When(self.watchdog),
            When(self.metrics),
            When(reporter.show_progress),
        ]
        if config.profile_steps:
            callbacks.append(When(reporter.profile, at(config.profile_steps)))
        if config.record_steps:
            record = self._with_equal_variables(reporter.record_step)
            callbacks.append(When(record, every(1), SummaryLevel.NORMS))
        # Metrics read the results of the step and no variables.
        write, due = reporter.write_metrics, every(config.summary_every_steps)
        callbacks.append(When(write, due, SummaryLevel.NORMS))
        if config.histogram_every_steps:
            due = every(config.histogram_every_steps)
            histograms = self._with_equal_variables(reporter.write_histograms)
            callbacks.append(When(histograms, due, SummaryLevel.HISTOGRAMS))
        if self.epochs is not None:
            callbacks += callbacks_of(
                self.epochs, self._evaluate, self._with_equal_variables
            )
        elif self.parts.evaluation.num_examples and config.evaluates:
            evaluate = self._with_equal_variables(self._evaluate)
            callbacks.append(When(evaluate, every(self.parts.eval_every_steps)))
        save = self._with_equal_variables(lambda _: self._save_checkpoint())
        callbacks.append(When(save, every(config.checkpoint_every_steps)))
        return callbacks

    def _with_equal_variables(self, callback: Callable[[StepEvent], Any]) -> Callback:
        """Returns a callback that reads variables, with the collectives around it."""

        def run(event: StepEvent) -> None:
            self.parts.strategy.average_replica_variables()
            callback(event)
            self._wait_for_chief()

        return run

    def _wait_for_chief(self) -> None:
        """Returns when all tasks have called it; a step would not wait so long."""
        # While the chief writes, other tasks wait here and not in a step.
        start = time.perf_counter()
        self.parts.strategy.barrier()
        if self.metrics.phases is not None:
            self.metrics.phases.add_chief_seconds(time.perf_counter() - start)

    def _evaluate(self, event: StepEvent) -> Mapping[str, float]:
        """Evaluates on the held-out examples, and returns the loss and metrics."""
        on_batch, batches_per_call = None, 1
        if self.epochs is not None:
            on_batch = self.epochs.on_test_batch
            batches_per_call = self.epochs.executions.size
        with self.metrics.clock.measure("eval"):
            evaluated = self.parts.evaluation.run(on_batch, batches_per_call)
        self.reporter.write_evaluation(event, evaluated)
        return evaluated.means

    def _save_checkpoint(self) -> None:
        """Saves a checkpoint, if all weights are finite.

        Raises:
          DivergedError: A weight is not finite; the earlier checkpoints are kept.
        """
        self.reporter.require_folder()
        with self.metrics.clock.measure("checkpoint"):
            self.parts.strategy.gather_replica_state()
            # On every task, so that all learn of a divergence.
            require_finite_weights(
                self.parts.model, self.parts.layer_state, self.parts.applied_steps()
            )
            self.reporter.save_checkpoint(self.epochs.state() if self.epochs else {})

    def _roll_back(self, error: DivergedError) -> None:
        """Returns to the checkpoint that the chief chooses.

        Raises:
          DivergedError: There is no checkpoint to go back to; nothing has changed.
        """
        strategy = self.parts.strategy
        strategy.average_replica_variables()
        rolls_back = self.parts.config.guard.rolls_back
        own_step = self.reporter.roll_back(error) if rolls_back else None
        step = agree_on_step(strategy, own_step) if rolls_back else None
        if step is None:
            num_rollbacks = self.reporter.num_rollbacks
            raise DivergedError(error.step, error.what, num_rollbacks) from error
        strategy.broadcast_from_chief(self.parts.state_variables())
        self.reporter.resume_after_rollback(step)
        if self.epochs is not None:
            self.epochs.go_back(self.reporter.restored_state())
