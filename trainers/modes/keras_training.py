"""Training by Keras's own `fit`, which the strategies are compared with.

The program's model, optimizer and callbacks are Keras's, and so is the loop. Only the
order of the examples is that of the other runs, so that all train on the same batches.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies.common.errors import ExitCode
from strategies.common.types import Batch, GlobalBatches, StepResults, SyncedFlags
from trainers.keras_program.keras_fit import (
    LossOfFit,
    validation_in_executions,
    whole_executions,
)
from trainers.keras_program.streams.stream import ProgramStream
from trainers.loop.evaluation import Evaluated
from trainers.loop.loop import StepEvent
from trainers.model.random_numbers.of_step import RandomNumbersOfFit
from trainers.modes.training_run import TrainingRun
from trainers.user_code.own_step.model_step import as_fit_has_it
from trainers.user_code.own_step.objective import loss_metric_of, loss_name_of


@dataclasses.dataclass(frozen=True, slots=True)
class KerasTraining(TrainingRun):
    """Training of a program's model by `keras.Model.fit` on one device."""

    def _repeat_end_of_fit(self) -> None:
        """Does nothing: the only checkpoint is saved after the end."""

    def _train(self) -> tuple[str, ExitCode]:
        """Calls `fit`; see `TrainingRun`."""
        if self.epochs is None or self.epochs.fit is None:
            raise RuntimeError("only a program calls fit")
        arguments, first = self.epochs.arguments, self.epochs.first_step
        if self.parts.applied_steps() > first:
            # Killed after its only checkpoint, and before its result.
            return "completed", ExitCode.DONE
        num_steps = self.parts.train_steps - first
        steps_per_epoch = self.epochs.lengths.equal(num_steps)
        replays = self.parts.config.model.replayable_random_numbers
        executions = whole_executions(
            self.parts.model,
            num_steps,
            steps_per_epoch,
            most=1 if self.parts.config.report.record_steps else None,
        )
        self.metrics.clock.started()
        self.watchdog.note("train")
        self.reporter.start_progress(first)
        with self.signals:
            watcher = _Watcher(self)
            with (
                executions,
                watcher.losses.followed(),
                watcher.numbers.replayed() if replays else contextlib.nullcontext(),
            ):
                self.epochs.callbacks.history = self.epochs.fit(
                    _as_fit_takes_it(watcher.counted(self.parts.batches(first))),
                    epochs=self.epochs.last_epoch,
                    initial_epoch=arguments.initial_epoch,
                    # The data set has all steps of the run, and no ends of epochs.
                    steps_per_epoch=min(steps_per_epoch, num_steps),
                    verbose=arguments.verbose,
                    callbacks=[watcher.stopwatch, *arguments.callbacks, watcher],
                    **self._validation(),
                )
            if self.signals.requested:
                return "preempted", self.signals.exit_code
        self.epochs.is_stopped = self.parts.applied_steps() < self.parts.train_steps
        self._save_checkpoint()
        return "completed", ExitCode.DONE

    def _validation(self) -> dict[str, Any]:
        if not self.parts.evaluation.num_examples or self.epochs is None:
            return {}
        evaluation = self.parts.evaluation
        data = _as_fit_takes_it(evaluation.batches.dataset(0, 1))
        return {
            **validation_in_executions(data, evaluation.num_steps, self.parts.model),
            "validation_freq": self.epochs.arguments.validation_freq,
        }


def _as_fit_takes_it(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns batches of the training loop as tuples that `fit` takes.

    Each is made when it is read. TensorFlow makes a `map` of a function without state
    parallel, and reads ahead for it (tensorflow/core/grappler/optimizers/data/
    map_parallelization.cc), into the next pass over the data.
    """

    def taken(state: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, Any]:
        return state, as_fit_has_it(batch)

    return batches.scan(tf.constant(0), tf.autograph.experimental.do_not_convert(taken))


class _Stopwatch(keras.callbacks.Callback):
    """Measures executions without the program's callbacks, before which it is called.

    The other strategies call a program's callbacks outside of their timed calls too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.since = self.until = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.until - self.since

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends the time of an execution, for which a callback on a GPU would wait."""
        tf.test.experimental.sync_devices()
        self.until = time.perf_counter()


class _Watcher(keras.callbacks.Callback):
    """Reports the steps of `fit` as the training loop reports its steps."""

    def __init__(self, run: KerasTraining):
        super().__init__()
        self._run = run
        self._signals = run.signals
        self._step = run.parts.order.first_step
        self._seconds: list[float] = []
        self._has_traced = False
        self.stopwatch = _Stopwatch()
        # Batches of the epoch so far.
        self._batches = 0
        self.losses = LossOfFit(run.parts.model, loss_metric_of(run.parts.objective))
        config = run.parts.config.report
        # Each report reads a metric, which a step of fit does not.
        self._every = 1 if config.record_steps else config.summary_every_steps
        self.numbers = RandomNumbersOfFit(run.parts.model, run.parts.config.run.seed)
        # Examples by step. Batches may have been read ahead of `fit`.
        self._examples_of_step: dict[int, int] = {}

    def counted(self, batches: GlobalBatches) -> tf.data.Dataset:
        """Returns whole batches, and counts the examples of each when it is read."""

        def note(step: np.ndarray, num_rows: np.ndarray) -> None:
            self._examples_of_step[int(step)] = int(num_rows)

        def noting(batch: Batch) -> Batch:
            tf.numpy_function(note, [batch.step, batch.num_rows], [])
            return batch

        return batches.dataset(0, 1).map(
            tf.autograph.experimental.do_not_convert(noting)
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to count batches, after a validation with the same metric."""
        self._batches = 0
        self.losses.take()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Draws the random numbers that replica 0 of the other runs draws."""
        if self._run.parts.config.report.record_steps:
            self.numbers.begin(self._batch_of_step())
        self.stopwatch.since = time.perf_counter()

    def _batch_of_step(self) -> Batch:
        """Returns what random numbers depend on, for the step that begins."""
        parts, step = self._run.parts, tf.constant(self._step, tf.int64)
        if isinstance(parts.data.train, ProgramStream):
            size = tf.constant(parts.data.train.batch_size, tf.int64)
            indices = step * size + tf.range(size)
        else:
            indices, _, size = parts.order.indices(step, 0, 1)
        return Batch(step, tf.zeros([], tf.int64), size, size, indices, None, None)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts steps, and reports the steps since the last report if it is time.

        Args:
          batch: Index of the batch in its epoch. Several follow the last one if the
            program is compiled with `steps_per_execution`.
          logs: Means since the start of the epoch, by name.
        """
        self._run.watchdog.progress()
        num_steps = batch + 1 - self._batches
        self._batches = batch + 1
        self._seconds += [self.stopwatch.seconds / num_steps] * num_steps
        passed = self._step // self._every
        self._step += num_steps
        parts = self._run.parts
        # fit ends after this batch, and validates as at the end of an epoch.
        if self._step == parts.train_steps or self._signals.requested:
            self.model.stop_training = True
        # A callback of the program may have stopped it as well.
        ends = self.model.stop_training or batch + 1 == self.params["steps"]
        # The first execution is traced: the speed leaves out a report of its own.
        if ends or not self._has_traced or self._step // self._every > passed:
            self._report(logs or {})
        self._has_traced = True

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._run.watchdog.progress()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Reports the validation, if there was one."""
        means = {
            name.removeprefix("val_"): value
            for name, value in (logs or {}).items()
            if name.startswith("val_")
        }
        if means:
            event = self._event(_no_steps())
            self._run.reporter.write_evaluation(event, Evaluated(means, None))

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the metrics of the last steps, if a callback has stopped the training.

        A signal leaves them to the run that continues.
        """
        if not (self._signals.requested or self._run.metrics.window.is_empty):
            self._run.reporter.write_metrics(self._event(_no_steps()))

    def _report(self, logs: Mapping[str, Any]) -> None:
        run = self._run
        first = self._step - len(self._seconds)
        examples = [
            self._examples_of_step.pop(step) for step in range(first, self._step)
        ]
        loss = self.losses.take()
        if loss is None:
            loss = float(logs.get(loss_name_of(run.parts.objective), math.nan))
        results = dataclasses.replace(
            _no_steps(),
            applied_steps=len(examples),
            attempted_steps=len(examples),
            sums={
                "loss": loss * np.array(examples, np.float64),
                "examples": np.array(examples, np.float64),
            },
            step_seconds=np.array(self._seconds),
            input_seconds=np.zeros(len(examples)),
        )
        seconds = sum(self._seconds)
        run.metrics.clock.add("train", seconds)
        run.metrics.process.counters.add(results)
        # fit counts in its optimizer alone.
        run.parts.step.assign(self._step)
        event = self._event(results, seconds)
        for callback in (run.watchdog, run.metrics, run.reporter.show_progress):
            callback(event)
        if run.parts.config.report.record_steps:
            run.reporter.record_step(event)
        every = run.parts.config.report.summary_every_steps
        if self._step // every > first // every or event.is_last:
            run.reporter.write_metrics(event)
        self._seconds = []

    def _event(self, results: StepResults, seconds: float = 0.0) -> StepEvent:
        return StepEvent(
            step=self._step,
            last_step=self._run.parts.train_steps,
            results=results,
            call_seconds=seconds,
        )


def _no_steps() -> StepResults:
    empty = np.zeros(0)
    return StepResults(
        applied_steps=0,
        sums={"loss": empty, "examples": empty},
        step_seconds=empty,
        input_seconds=empty,
        details={},
        agreed=SyncedFlags(),
        attempted_steps=0,
    )
