"""Files of a run, and the callbacks that write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from strategies.common.console import Console, ProgressMetrics
from strategies.common.errors import NotSavedError
from strategies.common.write_errors import WriteErrorReporter
from trainers.fault_tolerance.rollback import Rollbacks
from trainers.loop.builder import TrainingParts
from trainers.loop.loop import Always, StepEvent, When
from trainers.loop.timing import Clock
from trainers.model.confusion_matrix import CONFUSION_MATRIX, draw_confusion
from trainers.model.gradient_noise_scale import ReplicaStatistics
from trainers.model.rng import seed_states
from trainers.model.update import HISTOGRAMS, RECORDED
from trainers.reporting.metrics import MetricsWindow, PipelineIdleMeter, Staleness
from trainers.reporting.model_summaries import Inspection
from trainers.reporting.profiler import Profile
from trainers.reporting.run_description import hyperparameters
from trainers.reporting.tensorboard import EVAL, TRAIN, Summaries
from trainers.reporting.tracking.tracking import Tracking
from trainers.reporting.turns import require_finite_weights, turns
from trainers.run_dir.checkpoints import Checkpoints
from trainers.run_dir.export import BEST, LAST, Exports
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.step_recording import RecordedStep, Recording, unique_names
from trainers.run_dir.train_state import TrainCounters

_PICTURES_OF_A_RUN = 10


class Reporter:
    """Owner of a run's files and of their contents."""

    def __init__(
        self,
        assembly: TrainingParts,
        folder: RunDir,
        checkpoints: Checkpoints,
        console: Console,
        clock: Clock,
        tally: TrainCounters,
        rollbacks: Rollbacks,
        outside: Tracking,
    ):
        self._assembly = assembly
        self._folder = folder
        self._checkpoints = checkpoints
        # Checkpoints and summaries fail and recover independently of each other.
        self._saving, self._logging = (
            WriteErrorReporter(console),
            WriteErrorReporter(console),
        )
        self._console = console
        self._clock = clock
        self._tally = tally
        self._rollbacks = rollbacks
        self._outside = outside
        self._interval = MetricsWindow()
        self._staleness = Staleness()
        self._bubble = PipelineIdleMeter(assembly.pipeline)
        self._replica_statistics = ReplicaStatistics()
        self._recording = Recording(folder.path)
        self._inspection = Inspection(assembly.model, assembly.data)
        self._exports: Exports | None = None
        if assembly.config.report.export:
            self._exports = Exports(
                folder.exports,
                assembly.config.report.export,
                assembly.model,
                assembly.rebuild,
            )
        self._exporting = WriteErrorReporter(console)
        self._least_eval_loss = math.inf
        self.summaries = Summaries(
            folder.tensorboard, self._logging, run_name=folder.name
        )
        self._profile = Profile(folder.tensorboard, self._logging)
        self._has_dashboards = False
        self.final: dict[str, float] = {}

    def callbacks(self) -> list[When]:
        """Returns the callbacks in the order in which they run.

        The checkpoint is last, when all other files of the step are written.
        """
        return [
            Always(self._interval),
            Always(self._staleness),
            Always(self._bubble),
            Always(self._show_progress),
            *turns(
                self._assembly.config.report,
                self._assembly.eval_every_steps,
                record=self._record,
                write_metrics=self._write_metrics,
                write_histograms=self._write_histograms,
                evaluate=self._evaluate,
                save_checkpoint=lambda _: self.save_checkpoint(),
                profile=self._profile.turn,
                settle=self._assembly.strategy.settle,
                meet=lambda: self._assembly.strategy.broadcast_from_chief([]),
            ),
        ]

    def state(self) -> dict[str, Any]:
        """Returns the state that a checkpoint keeps in addition to variables."""
        return {
            "interval_sums": self._interval.sums(),
            "tally": self._tally.state(),
            **self._rollbacks.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state of a checkpoint and the values of the existing metrics.

        Args:
          state: State from the checkpoint.
        """
        self._interval.restore(state.get("interval_sums", {}))
        self._tally.restore(state.get("tally", {}))
        for row in self._folder.read_metrics():
            self.final.update(_final_values(row))
            self._is_best(row.get("eval_loss"))

    def go_back(self, state: Mapping[str, Any], step: int) -> None:
        """Discards the reports that follow the checkpoint of a rollback.

        Args:
          state: State from the restored checkpoint.
          step: Step of the restored checkpoint.
        """
        self._console.stop_progress()
        self._folder.drop_metrics_after(step)
        self.final = {}
        self._least_eval_loss = math.inf
        self._staleness.reset()
        self._bubble.reset()
        self.restore(state)

    def save_checkpoint(self) -> None:
        """Saves a checkpoint of the current state.

        A full disk causes a warning; the run continues and tries again at the next
        checkpoint.

        Raises:
          DivergedError: a weight is not finite; the checkpoints before are kept.
          FolderGoneError: the folder of the run is gone.
        """
        # Otherwise TensorFlow would make a new one, without what makes it a run.
        self._folder.require()
        with self._clock.measure("checkpoint"):
            step = int(self._assembly.step.numpy())
            require_finite_weights(self._assembly.model, step)
            what = f"the checkpoint of step {step} cannot be written"
            if self._saving.attempt(what, lambda: self._checkpoints.save(self.state())):
                self._saving.end("checkpoints")

    def require_saved(self) -> None:
        """Checks that the last checkpoint could be written.

        Raises:
          NotSavedError: The last checkpoint could not be written.
        """
        if self._saving.words is not None:
            kept = max(self._checkpoints.steps(), default=None)
            raise NotSavedError(self._folder.path, self._saving.words, kept)

    def export_last(self) -> None:
        """Writes the model at the end of training, if `--export` is given."""
        self._export(LAST)

    def tell_result(self, result: Mapping[str, Any]) -> None:
        """Sends the result of the run to the trackers.

        Args:
          result: Content of result.json.
        """
        self._outside.end(result)

    def close(self) -> None:
        self._describe_dashboards(("accuracy", "loss"))
        self._profile.close()
        self.summaries.close()

    def _show_progress(self, report: StepEvent) -> None:
        results = report.results
        examples = float(results.sums["examples"].sum())
        figures = ProgressMetrics(
            loss=float(results.sums["loss"].sum()) / examples,
            # Speed of this call only; metrics.jsonl has the mean of the interval.
            examples_per_second=examples / report.call_seconds,
            step_seconds=report.call_seconds / results.applied_steps,
        )
        self._console.advance(report.step, report.last_step, figures)

    def _record(self, report: StepEvent) -> None:
        with self._clock.measure("summary"):
            results = report.results
            recorded = RecordedStep(
                # With `--record_steps` each call has one step, so the last one is the
                # only one.
                loss=float(results.sums["loss"][-1]),
                examples=int(results.sums["examples"][-1]),
                random_layers=len(seed_states(self._assembly.model)),
                gradients={
                    name.removeprefix(RECORDED): values
                    for name, values in results.details.items()
                    if name.startswith(RECORDED)
                },
                weights=_values(self._assembly.model.trainable_variables),
                layer_state=_values(self._assembly.layer_state.variables),
                metrics={
                    name: float(sums[-1])
                    for name, sums in results.sums.items()
                    if name not in ("loss", "examples") and np.ndim(sums[-1]) == 0
                },
            )
            self._recording.write(report.step, recorded)

    def _write_metrics(self, report: StepEvent) -> None:
        with self._clock.measure("summary"):
            means = self._interval.means()
            milliseconds = self._interval.milliseconds()
            speed = self._interval.examples_per_second()
            of_replicas = self._replica_statistics.scalars(report.results)
            norms = {
                name: float(value)
                for name, value in report.results.details.items()
                # Histograms and recorded gradients are arrays, not scalars.
                if not name.startswith((HISTOGRAMS, RECORDED))
            }
            scalars = {
                **means,
                **norms,
                "learning_rate": self._learning_rate(report.step),
                "examples_per_second": speed,
                **{f"step_milliseconds/{k}": v for k, v in milliseconds.items()},
                **self._staleness.scalars(),
                **self._bubble.scalars(),
                **of_replicas,
            }
            self._write_scalars(TRAIN, scalars, report.step)
            histogram = self._staleness.histogram()
            if histogram is not None:
                self.summaries.histograms({"staleness": histogram}, report.step)
            row = {
                "step": report.step,
                **{f"train_{name}": value for name, value in means.items()},
                **norms,
                "learning_rate": scalars["learning_rate"],
                "examples_per_second": speed,
                "step_milliseconds": milliseconds,
                "staleness": self._staleness.summary(),
                **self._bubble.scalars(),
                **of_replicas,
                "seconds": self._clock.seconds(),
            }
            self._append_metrics(row)
        self.final["train_loss"] = means["loss"]
        self._interval.reset()
        self._staleness.reset()
        self._bubble.reset()

    def _write_scalars(
        self, split: str, values: Mapping[str, float], step: int
    ) -> None:
        self.summaries.scalars(split, values, step)
        self._outside.log(split, values, step)

    def _append_metrics(self, row: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl and flushes the summaries of the same step.

        Args:
          row: Line of metrics.jsonl.
        """
        what = f"lines of {self._folder.path}/metrics.jsonl cannot be written"
        written = self._logging.attempt(what, lambda: self._folder.append_metrics(row))
        if self.summaries.flush() and written:
            self._logging.end("metrics and summaries")

    def _learning_rate(self, step: int) -> float:
        """Returns the learning rate of the update that led to a step."""
        # The first update, which leads to step 1, uses the rate of step 0.
        return float(self._assembly.learning_rate(step - 1))

    def _write_histograms(self, report: StepEvent) -> None:
        with self._clock.measure("summary"):
            gradients = {
                name: rows
                for name, rows in report.results.details.items()
                if name.startswith(HISTOGRAMS)
            }
            histograms = {**gradients, **self._inspection.histograms()}
            self.summaries.histograms(histograms, report.step)

    def _evaluate(self, report: StepEvent) -> None:
        with self._clock.measure("eval"):
            means, confusion = self._assembly.evaluation.run()
        with self._clock.measure("summary"):
            # TensorBoard cannot draw values that are not finite.
            finite = {name: v for name, v in means.items() if math.isfinite(v)}
            self._write_scalars(EVAL, finite, report.step)
            self._describe_dashboards(list(means))
            counts = {}
            if confusion is not None:
                counts = {f"eval_{CONFUSION_MATRIX}": confusion.tolist()}
            if confusion is not None and self._is_picture_due(report):
                picture = draw_confusion(confusion, self._assembly.data.class_names)
                self.summaries.image(EVAL, CONFUSION_MATRIX, picture, report.step)
            self._append_metrics(
                {
                    "step": report.step,
                    **{f"eval_{name}": value for name, value in finite.items()},
                    **counts,
                    "seconds": self._clock.seconds(),
                }
            )
        self.final.update({f"eval_{name}": value for name, value in means.items()})
        if self._is_best(means.get("loss")):
            self._export(BEST)
        # The final summary of the run prints the last evaluation.
        if not report.is_last:
            self._console.say(f"eval  | step {report.step:>7} | {in_words(means)}")

    def _describe_dashboards(self, metrics: Sequence[str]) -> None:
        """Says once what TensorBoard's dashboards show, when the metrics are known."""
        if not self._has_dashboards:
            self._has_dashboards = True
            self.summaries.layout(metrics)
            self.summaries.hparam_columns(
                list(hyperparameters(self._assembly)), metrics
            )

    def _is_picture_due(self, report: StepEvent) -> bool:
        """Returns whether a tenth of the run has ended since the evaluation before.

        TensorBoard shows ten pictures of a tag, and drawing one takes longer than
        evaluating a small data set. It depends on steps alone, so that a run that is
        continued draws the same.
        """
        between = self._assembly.eval_every_steps or report.step
        tenth = max(report.last_step // _PICTURES_OF_A_RUN, 1)
        before = max(report.step - between, 0)
        return report.is_last or report.step // tenth > before // tenth

    def _is_best(self, eval_loss: float | None) -> bool:
        """Records an evaluation loss and returns whether it is the lowest so far.

        Args:
          eval_loss: Evaluation loss; None without an evaluation.
        """
        # Comparisons with nan are False, so nan is never the best loss.
        if eval_loss is None or not eval_loss < self._least_eval_loss:
            return False
        self._least_eval_loss = eval_loss
        return True

    def _export(self, name: str) -> None:
        exports = self._exports
        if exports is None:
            return
        with self._clock.measure("checkpoint"):
            what = f"{self._folder.exports}/{name} cannot be written"
            if self._exporting.attempt(what, lambda: exports.write(name)):
                self._exporting.end("exports")


def _values(variables: Sequence[keras.Variable]) -> dict[str, np.ndarray]:
    names = unique_names([variable.path for variable in variables])
    return {
        name: variable.numpy() for name, variable in zip(names, variables, strict=True)
    }


def _final_values(row: Mapping[str, Any]) -> dict[str, float]:
    """What `final` of result.json has of a line of metrics.jsonl."""
    return {
        name: value
        for name, value in row.items()
        if (name == "train_loss" or name.startswith("eval_"))
        # The confusion matrix is none.
        and isinstance(value, float)
    }


def in_words(means: Mapping[str, float]) -> str:
    """Losses and metrics on one line."""
    return " | ".join(f"{name} {_shown(value)}" for name, value in means.items())


def _shown(value: float) -> str:
    """Formats four decimals, or four digits of very small and very large values."""
    is_usual = value == 0 or 0.01 <= abs(value) < 100_000
    return f"{value:.4f}" if is_usual else f"{value:.4g}"
