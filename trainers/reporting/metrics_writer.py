"""Lines of metrics.jsonl, and the summaries and tracker points of the same values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.common.console import Console
from strategies.common.write_errors import WriteErrorReporter
from trainers.loop.evaluation import Evaluated
from trainers.loop.loop import StepEvent
from trainers.loop.parts import TrainingParts
from trainers.model.confusion_matrix import CONFUSION_MATRIX, draw_confusion
from trainers.model.gradient_noise_scale import ReplicaStatistics
from trainers.model.update import HISTOGRAMS, RECORDED
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.model_summaries import Inspection
from trainers.reporting.profiler import Profile
from trainers.reporting.run_description import describe_run, hyperparameters
from trainers.reporting.tensorboard import EVAL, TRAIN, Summaries, by_tag
from trainers.reporting.tracking.tracking import Tracking
from trainers.run_dir.training_dir import TrainingDir

_PICTURES_OF_A_RUN = 10


class MetricsWriter:
    """Writer of a run's metrics to metrics.jsonl, TensorBoard and trackers."""

    def __init__(
        self,
        parts: TrainingParts,
        console: Console,
        folder: TrainingDir,
        tracking: Tracking,
        metrics: RunMetrics,
    ):
        """Creates the event files in the folder of the run, which exists."""
        self._parts = parts
        self._folder = folder
        self._tracking = tracking
        self._metrics = metrics
        self._errors = WriteErrorReporter(console)
        self.replica_statistics = ReplicaStatistics()
        self._inspection = Inspection(parts.model, parts.data)
        self.summaries = Summaries(
            folder.tensorboard, self._errors, run_name=folder.name
        )
        steps = parts.config.report.profile_steps
        self.profile = Profile(folder.tensorboard, self._errors, steps)
        self._has_dashboards = False
        self._least_eval_loss = math.inf
        self.final: dict[str, float] = {}

    def restore(self) -> None:
        """Restores the last values of a resumed run from metrics.jsonl."""
        # Rows of earlier calls of a program's `fit` are of other trainings.
        first = self._parts.order.first_step
        rows = [row for row in self._folder.metrics.rows() if row["step"] > first]
        self.final = last_values(rows)
        self._least_eval_loss = math.inf
        for row in rows:
            self._is_best(row.get("eval_loss"))

    def describe(self, graph: tf.Graph) -> None:
        """Writes the graph and the settings of the run to TensorBoard."""
        self.summaries.graph(graph)
        self.summaries.texts(describe_run(self._parts))
        self.summaries.hparams(hyperparameters(self._parts))

    def write_metrics(self, event: StepEvent) -> None:
        """Writes the metrics since the call before."""
        metrics = self._metrics
        means = metrics.window.means()
        milliseconds = metrics.window.milliseconds()
        # The same under the same name in TensorBoard and in metrics.jsonl.
        values = {
            **_norms(event),
            "learning_rate": self._learning_rate(event),
            "examples_per_second": metrics.window.examples_per_second(),
            **metrics.idle.scalars(),
            **self.replica_statistics.scalars(event.results),
        }
        scalars = {
            **by_tag(means),
            **values,
            **{f"step_milliseconds/{k}": v for k, v in milliseconds.items()},
            **metrics.staleness.scalars(),
        }
        self._write_scalars(TRAIN, scalars, event.step)
        histogram = metrics.staleness.histogram()
        if histogram is not None:
            self.summaries.histograms({"staleness": histogram}, event.step)
        self._append_row(
            {
                "step": event.step,
                **{f"train_{name}": value for name, value in _finite(means)},
                **values,
                "step_milliseconds": milliseconds,
                "staleness": metrics.staleness.summary(),
                "seconds": metrics.clock.seconds(),
            }
        )
        self.final["train_loss"] = means["loss"]
        metrics.begin_window()

    def _learning_rate(self, event: StepEvent) -> float:
        # The first update, which leads to step 1, uses the rate of step 0.
        step = event.step - 1 - self._parts.order.first_step
        return float(self._parts.learning_rate(step))

    def write_histograms(self, event: StepEvent) -> None:
        """Writes histograms of gradients, weights and activations."""
        gradients = {
            name: rows
            for name, rows in event.results.details.items()
            if name.startswith(HISTOGRAMS)
        }
        histograms = {**gradients, **self._inspection.histograms()}
        self.summaries.histograms(histograms, event.step)

    def write_evaluation(self, event: StepEvent, evaluated: Evaluated) -> bool:
        """Writes the result of an evaluation, and returns whether it is the best."""
        means, confusion = evaluated
        with self._metrics.clock.measure("summary"):
            scalars = by_tag(means)
            self._write_scalars(EVAL, scalars, event.step)
            self._describe_dashboards(list(scalars))
            counts = {}
            if confusion is not None:
                counts = {f"eval_{CONFUSION_MATRIX}": confusion.tolist()}
                if self._is_picture_due(event):
                    picture = draw_confusion(confusion, self._parts.data.class_names)
                    self.summaries.image(EVAL, CONFUSION_MATRIX, picture, event.step)
            self._append_row(
                {
                    "step": event.step,
                    # A program's metric of this name takes the place of the counts.
                    **counts,
                    **{f"eval_{name}": value for name, value in _finite(means)},
                    "seconds": self._metrics.clock.seconds(),
                }
            )
        self.final.update({f"eval_{name}": value for name, value in means.items()})
        return self._is_best(means.get("loss"))

    def close(self) -> None:
        # TensorFlow would make the folder of the run anew, if it is gone.
        if self._folder.holds_a_run:
            self._describe_dashboards(("accuracy", "loss"))
            self.profile.close()
        self.summaries.close()

    def _write_scalars(
        self, split: str, values: Mapping[str, float], step: int
    ) -> None:
        # TensorBoard cannot draw values that are not finite.
        self.summaries.scalars(split, dict(_finite(values)), step)
        self._tracking.log(split, values, step)

    def _append_row(self, row: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl, and flushes the summaries of its step."""
        what = f"lines of {self._folder.path}/metrics.jsonl cannot be written"
        written = self._errors.attempt(what, lambda: self._folder.append_metrics(row))
        if self.summaries.flush() and written:
            self._errors.end("metrics and summaries")

    def _describe_dashboards(self, metrics: Sequence[str]) -> None:
        """Describes TensorBoard's dashboards once, when the metrics are known."""
        if not self._has_dashboards:
            self._has_dashboards = True
            self.summaries.layout(metrics)
            self.summaries.hparam_columns(list(hyperparameters(self._parts)), metrics)

    def _is_picture_due(self, event: StepEvent) -> bool:
        """Returns whether a tenth of the run has ended since the evaluation before.

        TensorBoard shows ten pictures of a tag, and drawing one takes longer than
        evaluating a small data set. It depends on steps alone, so that a resumed run
        draws the same.
        """
        between = self._parts.eval_every_steps or event.step
        tenth = max(event.last_step // _PICTURES_OF_A_RUN, 1)
        before = max(event.step - between, 0)
        return event.is_last or event.step // tenth > before // tenth

    def _is_best(self, eval_loss: float | None) -> bool:
        """Records an evaluation loss and returns whether it is the lowest so far."""
        # Comparisons with nan are False, so nan is never the best loss.
        if eval_loss is None or not eval_loss < self._least_eval_loss:
            return False
        self._least_eval_loss = eval_loss
        return True


def _finite(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the names and values that are finite; JSON has no word for others."""
    return [(name, value) for name, value in values.items() if math.isfinite(value)]


def _norms(event: StepEvent) -> dict[str, float]:
    # Histograms and recorded gradients are arrays, not scalars.
    return {
        name: float(value)
        for name, value in event.results.details.items()
        if not name.startswith((HISTOGRAMS, RECORDED))
    }


def last_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the last losses and metrics of metrics.jsonl, for result.json."""
    last: dict[str, float] = {}
    for row in rows:
        if "step_milliseconds" not in row:
            # An evaluation. Its line leaves out values that are not finite.
            measured = [name for name in last if name.startswith("eval_")]
            last |= dict.fromkeys(measured, math.nan)
        last |= {
            name: value
            for name, value in row.items()
            if (name == "train_loss" or name.startswith("eval_"))
            # The confusion matrix is none.
            and isinstance(value, float)
        }
    return last


def metrics_in_words(means: Mapping[str, float]) -> str:
    """Returns losses and metrics on one line."""
    return " | ".join(f"{name} {_shown(value)}" for name, value in means.items())


def _shown(value: float) -> str:
    """Formats four decimals, or four digits of very small and very large values."""
    is_usual = value == 0 or 0.01 <= abs(value) < 100_000
    return f"{value:.4f}" if is_usual else f"{value:.4g}"
