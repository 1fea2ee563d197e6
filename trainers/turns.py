"""At which steps a run stops to report: the same in every process."""

from __future__ import annotations

import keras
import numpy as np

from strategies.base import Observe
from trainers.config import ReportConfig
from trainers.loop import Every, Hook
from trainers.outcome import DivergedError


def turns(
    report: ReportConfig,
    *,
    record: Hook,
    write_metrics: Hook,
    write_histograms: Hook,
    evaluate: Hook,
    save_checkpoint: Hook,
) -> list[Every]:
    """The scheduled hooks in the order they run, the checkpoint last.

    A checkpoint comes when all else is written, so that a run that is killed and
    continued has lost nothing that came before it.
    """
    histograms = report.histogram_every_steps
    return [
        *([Every(1, record, Observe.NORMS)] if report.record_steps else []),
        Every(report.summary_every_steps, write_metrics, Observe.NORMS),
        *([Every(histograms, write_histograms, Observe.CLOSELY)] if histograms else []),
        Every(report.eval_every_steps, evaluate),
        Every(report.checkpoint_every_steps, save_checkpoint),
    ]


def require_finite_weights(model: keras.Model, step: int) -> None:
    """Raises DivergedError if a weight is not finite after a step.

    A loss tells of it only with the next step, too late for a checkpoint.
    """
    for weight in model.weights:
        if not np.isfinite(weight.numpy()).all():
            raise DivergedError(step, f"{weight.path} is not finite after")
