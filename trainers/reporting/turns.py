"""At which steps a run stops to report: the same in every process."""

from __future__ import annotations

from collections.abc import Callable

import keras

from strategies.common.errors import DivergedError
from strategies.common.types import Observe
from trainers.config.run import ReportConfig
from trainers.fault_tolerance.non_finite import is_finite
from trainers.loop.loop import At, Every, Hook, StepReport, When


def turns(
    report: ReportConfig,
    eval_every_steps: int | None,
    *,
    record: Hook,
    write_metrics: Hook,
    write_histograms: Hook,
    evaluate: Hook,
    save_checkpoint: Hook,
    profile: Hook,
    settle: Callable[[], None],
    meet: Callable[[], None],
) -> list[When]:
    """The scheduled hooks in the order they run, the checkpoint last.

    A checkpoint comes when all else is written, so that a run that is killed and
    continued has lost nothing that came before it.

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

    def together(hook: Hook) -> Hook:
        def run(report: StepReport) -> None:
            settle()
            hook(report)
            meet()

        return run

    histograms = report.histogram_every_steps
    return [
        *([At(report.profile_steps, profile)] if report.profile_steps else []),
        *([Every(1, together(record), Observe.NORMS)] if report.record_steps else []),
        Every(report.summary_every_steps, write_metrics, Observe.NORMS),
        *(
            [Every(histograms, together(write_histograms), Observe.CLOSELY)]
            if histograms
            else []
        ),
        Every(eval_every_steps, together(evaluate)),
        Every(report.checkpoint_every_steps, together(save_checkpoint)),
    ]


def require_finite_weights(model: keras.Model, step: int) -> None:
    """Raises DivergedError if a weight is not finite after a step.

    A loss tells of it only with the next step, too late for a checkpoint.
    """
    for weight in model.weights:
        if not is_finite(weight):
            raise DivergedError(step, f"{weight.path} is not finite after")
