"""Reporter of the chief: the files of a run and its printed lines."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from models.objective import as_scalars
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import DivergedError, NotSavedError, UsageError
from strategies.common.types import LoopFunction
from strategies.common.write_errors import WriteErrorReporter, disk_error, remedy_of
from trainers.config.tracking import TrackingConfig
from trainers.fault_tolerance.rollback import Rollbacks
from trainers.loop.evaluation import Evaluated
from trainers.loop.loop import StepEvent
from trainers.loop.parts import TrainingParts
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.metrics_writer import MetricsWriter, metrics_in_words
from trainers.reporting.null_reporter import NullReporter
from trainers.reporting.placement_log import PlacementRecorder, write_placements
from trainers.reporting.printed_reports import (
    print_final_summary,
    print_startup_report,
)
from trainers.reporting.recorded_step import record_step
from trainers.reporting.result import Origin, build_result, versions
from trainers.reporting.tracking.tracking import Tracking
from trainers.run_dir.continuation import check_enough_steps, check_same_phases
from trainers.run_dir.export import BEST, LAST, Exports
from trainers.run_dir.train_state import DataSize, is_stopped, was_over
from trainers.run_dir.training_dir import TrainingDir


class Reporter(NullReporter):
    """Writer of a run's folder."""

    # Made by `begin`, once there is a folder to write to.
    _writer: MetricsWriter

    def __init__(
        self,
        parts: TrainingParts,
        cluster: Cluster,
        console: Console,
        folder: TrainingDir,
        tracking: Tracking,
        metrics: RunMetrics,
        origin: Origin,
    ):
        """Stores its parts, before a checkpoint is restored."""
        super().__init__(parts, cluster, console)
        self._folder = folder
        self._tracking = tracking
        self._metrics = metrics
        self._origin = origin
        self._checkpoints = parts.checkpoints(
            folder.phase_path(parts.phase), with_replica_state=True
        )
        self._rollbacks = Rollbacks(
            self._checkpoints,
            parts.learning_rate_scale,
            parts.config.guard.most_rollbacks,
            console.warn,
        )
        # State of the restored checkpoint; None for a run that has just begun.
        self._restored: Mapping[str, Any] | None = None
        # Checkpoints, exports and summaries fail and recover independently.
        self._saving = WriteErrorReporter(console)
        self._exporting = WriteErrorReporter(console)
        self._exports = Exports(
            folder.exports,
            parts.config.report.export or (),
            parts.model,
            parts.rebuild,
        )

    @property
    def num_rollbacks(self) -> int:
        return self._rollbacks.count

    def restore_newest(self) -> bool:
        if self._folder.holds_a_run:
            self._restored = self._checkpoints.restore_newest(self._console.warn)
        state, parts = self.restored_state(), self._parts
        self._compare_data(state)
        self._rollbacks.restore(state)
        step = parts.applied_steps()
        self._metrics.process.is_continued |= self._restored is not None and step > 0
        check_enough_steps(self._folder.path, step, parts.train_steps)
        # A run without a result, such as one killed in its last checkpoint, still
        # writes one.
        is_over = step == parts.train_steps or is_stopped(state)
        check_same_phases(
            self._folder,
            parts.phase,
            began=state.get("phase", {}).get("first_step"),
            first_step=parts.order.first_step,
            ended=step if was_over(state) else None,
            last_step=step if is_over else parts.train_steps,
        )
        trains_on = parts.order.first_step < step and not is_over
        if parts.config.model.keras_fit and trains_on:
            raise UsageError(
                f"{self._folder.path} has done {step:,} steps of Keras's own fit, "
                "which is not continued: leave epochs as they were, or choose another "
                "--run_dir."
            )
        if not (is_over and self._folder.has_ended(parts.phase)):
            return False
        self._metrics.process.counters.restore(state.get("tally", {}))
        words = f"{self._folder.path} is complete at step {step}: nothing to do."
        if parts.config.model.script is not None:
            # Whether the program calls fit again is not known.
            words = (
                f"{self._folder.path}: fit {parts.phase} of the program was over at "
                f"step {step}."
            )
        self._console.say(words)
        return True

    def _compare_data(self, state: Mapping[str, Any]) -> None:
        """Warns if the data of a resumed run have other numbers of examples."""
        # An older version has not kept them; a program's depend on its epochs as well.
        if "data" not in state or self._parts.config.model.script is not None:
            return
        was, now = DataSize(**state["data"]), self._data_size()
        if was != now:
            self._console.warn(
                f"{self._folder.path} was trained on {was.train:,} examples, with "
                f"{was.evaluation:,} held out, and the data have {now.train:,} and "
                f"{now.evaluation:,} now: the order is another one, and examples may "
                "be held out that were trained on."
            )

    def _data_size(self) -> DataSize:
        data = self._parts.data
        # A user's function may count in NumPy's integers.
        counts = (data.train.num_examples, data.evaluation.num_examples)
        return DataSize(*map(int, counts))

    def begin(self, first_step: int) -> None:
        parts, folder, metrics = self._parts, self._folder, self._metrics
        decided = parts.config.replace(jit_compile=parts.compilation.setting)
        folder.begin(decided, first_step, parts.phase)
        if folder.is_repeated:
            # Trackers have the points of later `fit`s already, and this one's end
            # would close their entries.
            self._tracking = Tracking(TrackingConfig(), self._console)
        folder.phase_path(parts.phase).mkdir(exist_ok=True)
        self._checkpoints.remove_unfinished()
        self._console.open_log(folder.log_path(self._cluster.task))
        print_startup_report(parts, folder, first_step, self._console)
        self._writer = MetricsWriter(
            parts, self._console, folder, self._tracking, metrics
        )
        if self._restored is not None:
            self._restore_reports(self._restored)
        self._tracking.begin(parts, folder, versions(), self._origin.commit)

    def _restore_reports(self, state: Mapping[str, Any]) -> None:
        """Restores measurements from a checkpoint, and values from metrics.jsonl."""
        self._metrics.begin_window(state.get("interval_sums"))
        self._metrics.process.counters.restore(state.get("tally", {}))
        self._writer.replica_statistics.restore(state)
        self._writer.restore()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Measures the time of a block that writes below the run folder."""
        # TensorFlow would make a new one, without the other files of the run.
        self._folder.require()
        with self._metrics.clock.measure("summary"):
            yield

    def describe(self, graph: tf.Graph) -> None:
        with self._writing():
            self._writer.describe(graph)

    def record_placement(self, loop_function: LoopFunction) -> LoopFunction:
        if not self._parts.config.device.log_device_placement:
            return loop_function
        return PlacementRecorder(
            loop_function,
            lambda placed: write_placements(
                placed,
                self._parts,
                self._console,
                log=str(self._folder.log_path(self._cluster.task)),
                summaries=self._writer.summaries,
            ),
        )

    def start_progress(self, first_step: int) -> None:
        self._console.start_progress(first_step, self._parts.train_steps)

    def show_progress(self, event: StepEvent) -> None:
        results = event.results
        examples = float(results.sums["examples"].sum())
        self._console.advance(
            event.step,
            event.last_step,
            loss=float(results.sums["loss"].sum()) / examples,
            # Speed of this call only; metrics.jsonl has the mean of the window.
            examples_per_second=examples / event.call_seconds,
            step_seconds=event.call_seconds / results.applied_steps,
        )

    def profile(self, event: StepEvent) -> None:
        self._folder.require()
        self._writer.profile.turn(event)

    def record_step(self, event: StepEvent) -> None:
        with self._writing():
            record_step(event, self._parts, self._folder.path)

    def write_metrics(self, event: StepEvent) -> None:
        with self._writing():
            self._writer.write_metrics(event)

    def write_histograms(self, event: StepEvent) -> None:
        with self._writing():
            self._writer.write_histograms(event)

    def write_evaluation(self, event: StepEvent, evaluated: Evaluated) -> None:
        self._folder.require()
        evaluated = evaluated._replace(means=as_scalars(evaluated.means))
        if self._writer.write_evaluation(event, evaluated):
            self._export(BEST)
        # The final summary of the run prints the last evaluation.
        if not event.is_last:
            words = metrics_in_words(evaluated.means)
            self._console.say(f"eval  | step {event.step:>7} | {words}")

    def restored_state(self) -> Mapping[str, Any]:
        return self._restored or {}

    def save_checkpoint(self, program: Mapping[str, Any]) -> None:
        step = self._parts.applied_steps()
        state = {
            "interval_sums": self._metrics.window.sums(),
            "tally": dataclasses.asdict(self._metrics.process.counters),
            "data": dataclasses.asdict(self._data_size()),
            "phase": {"first_step": self._parts.order.first_step},
            **self._rollbacks.state(),
            **self._writer.replica_statistics.state(),
            **program,
        }
        what = f"the checkpoint of step {step} cannot be written"
        if self._saving.attempt(what, lambda: self._checkpoints.save(state)):
            self._saving.end("checkpoints")

    def roll_back(self, error: DivergedError) -> int | None:
        self._restored = self._rollbacks.go_back(error)
        return None if self._restored is None else self._parts.applied_steps()

    def resume_after_rollback(self, step: int) -> None:
        self._console.stop_progress()
        self._folder.discard_after(step)
        self._restore_reports(self.restored_state())

    def require_folder(self) -> None:
        self._folder.require()

    def require_saved(self) -> None:
        if self._saving.words is not None:
            kept = max(self._checkpoints.steps(), default=None)
            folder = self._folder.path
            left = (
                f"{folder} has none"
                if kept is None
                else f"the newest in {folder} is that of step {kept}"
            )
            raise NotSavedError(
                "the last checkpoint",
                self._saving.words,
                where=f", and {left}: {remedy_of(self._saving.words)} on its disk",
            )

    def export_last(self) -> None:
        self._export(LAST)
        if self._exporting.words is not None:
            raise NotSavedError(
                f"{self._folder.exports}/{LAST}",
                self._exporting.words,
                where=f": {remedy_of(self._exporting.words)} on its disk",
            )

    def _export(self, name: str) -> None:
        if not self._parts.config.report.export or self._folder.is_repeated:
            return
        self._folder.require()
        with self._metrics.clock.measure("checkpoint"):
            what = f"{self._folder.exports}/{name} cannot be written"
            if self._exporting.attempt(what, lambda: self._exports.write(name)):
                self._exporting.end("exports")

    def fail(self, error: DivergedError | NotSavedError) -> None:
        self._console.fail(str(error))

    def write_result(self, status: str) -> bool:
        self._console.stop_progress()
        self._writer.close()
        result = build_result(
            self._parts,
            self._cluster,
            self._metrics,
            status=status,
            final=self._writer.final,
            rollbacks=self._rollbacks.count,
            origin=self._origin,
        )
        self._tracking.end(result)
        try:
            self._folder.write_result(result)
        except OSError as error:
            words = disk_error(error)
            if words is None:
                raise
            # A failed run has already printed its cause, which may be the same disk.
            if status != "failed":
                self._console.fail(
                    f"result.json could not be written ({words}): {remedy_of(words)} "
                    f"on the disk of {self._folder.path}, then finish with "
                    "--resume=auto."
                )
            return False
        return True

    def print_summary(self, status: str) -> None:
        print_final_summary(
            self._console,
            status,
            self._parts.applied_steps(),
            self._writer.final,
            self._metrics,
            self._folder,
            script=self._parts.config.model.script,
        )
