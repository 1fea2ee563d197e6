"""Schedule of the training callbacks, equal in every process."""

from __future__ import annotations

from collections.abc import Callable

import keras

from strategies.common.errors import DivergedError
from strategies.common.types import SummaryLevel
from trainers.config.run import ReportConfig
from trainers.fault_tolerance.non_finite import is_finite
from trainers.loop.loop import At, Callback, Every, StepEvent, When


def turns(
    report: ReportConfig,
    eval_every_steps: int | None,
    *,
    record: Callback,
    write_metrics: Callback,
    write_histograms: Callback,
    evaluate: Callback,
    save_checkpoint: Callback,
    profile: Callback,
    settle: Callable[[], None],
    meet: Callable[[], None],
) -> list[When]:
    """Returns the scheduled callbacks in the order in which they run.

    The checkpoint is last, when all other files of the step are written, so that a run
    that is killed and resumed has lost no report from before the checkpoint.

    Args:
      report: how often.
      eval_every_steps: Steps between evaluations; None for only at the end.
      record: keeps all that a step has computed.
      write_metrics: told of a step whose norms were observed.
      write_histograms: told of a step that was observed closely.
      evaluate: takes part in an evaluation.
      profile: begins a trace, then ends it.
      save_checkpoint: saves one, or does nothing in processes that do not.
      settle: makes the variables of all processes what is to be looked at. It begins
        the turns that look at them.
      meet: returns when all processes have called it. It ends the turns that may
        keep the chief for longer than a peer may be silent within a step.
    """

    def together(hook: Callback) -> Callback:
        def run(report: StepEvent) -> None:
            # settle and meet are collective, so every process must schedule the same
            # callbacks.
            settle()
            hook(report)
            meet()

        return run

    histograms = report.histogram_every_steps
    return [
        *([At(report.profile_steps, profile)] if report.profile_steps else []),
        *(
            [Every(1, together(record), SummaryLevel.NORMS)]
            if report.record_steps
            else []
        ),
        # Not synchronized: metrics read the results of the step and no variables.
        Every(report.summary_every_steps, write_metrics, SummaryLevel.NORMS),
        *(
            [Every(histograms, together(write_histograms), SummaryLevel.CLOSELY)]
            if histograms
            else []
        ),
        Every(eval_every_steps, together(evaluate)),
        Every(report.checkpoint_every_steps, together(save_checkpoint)),
    ]


def require_finite_weights(model: keras.Model, step: int) -> None:
    """Checks that all weights are finite after a step.

    Args:
      model: Model to check.
      step: Number of applied updates.

    Raises:
      DivergedError: A weight is not finite.
    """
    # The loss only shows it at the next step, which is too late for this checkpoint.
    for weight in model.weights:
        if not is_finite(weight):
            raise DivergedError(step, f"{weight.path} is not finite after")
