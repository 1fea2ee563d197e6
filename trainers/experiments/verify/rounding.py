"""Rounding errors as the training itself amplifies them.

A gradient can be zero but for rounding: softmax cancels the bias of an attention's
keys. Adam divides it by its own size: the update is nothing but rounding, and large.
The tolerance counts additions and cannot know of it. So the reference trains once more
from weights that differ in their last bit. What then differs is rounding alone (Monte
Carlo arithmetic: Parker, UCLA report CSD-970002, 1997).
"""

import math
from collections.abc import Callable

from trainers.config.config import Config
from trainers.experiments.runner import Executed
from trainers.experiments.verify.differences import agreement, constants_of
from trainers.experiments.verify.tolerance import EPSILON
from trainers.experiments.verify.verdict import Judgement, Verdict, judge

# Such as `Runner.run_once`.
RunOnce = Callable[[str, Config], Executed]

# A second difference by rounding is seldom ten times the first: of two normal numbers
# in 6 of 100 cases, of the norms of two vectors of four in 1 of 3,400 (F distribution).
_TIMES_APART = 10.0


def judge_with_rounding(
    subject: Executed, reference: Executed, run: RunOnce
) -> Judgement:
    """Compares a run with the reference, and again if rounding may explain it."""
    judgement = judge(subject, reference)
    violation = judgement.first_violation
    most = math.sqrt(EPSILON[reference.config.model.dtype])
    # Weights whose gradients are rounding may differ by any amount; nothing else may.
    if violation is None or (
        violation.quantity != "weights" and violation.difference.relative > most
    ):
        return judgement
    perturbed = run(
        f"{reference.run.arm}-perturbed",
        reference.config.replace(perturb_initial_weights=True),
    )
    if not perturbed.run.has_trained:
        return judgement
    allowed = [
        {key: _TIMES_APART * value for key, value in largest.items()}
        for largest in _differences_by_rounding(perturbed, reference)
    ]
    # A loss of which rounding leaves less than half of the digits explains nothing:
    # such a training cannot be compared in this precision.
    if allowed[-1]["loss", None] > most:
        return judgement
    again = judge(subject, reference, allowed)
    return judgement if again.verdict is Verdict.DIFFERENT else again


def _differences_by_rounding(
    perturbed: Executed, reference: Executed
) -> list[dict[tuple[str, str | None], float]]:
    """Returns the largest difference so far, by step, then quantity and variable."""
    found: list[dict[tuple[str, str | None], float]] = []
    largest: dict[tuple[str, str | None], float] = {}
    # A callback may end one of the two earlier.
    common = min(run.recording.num_steps() for run in (perturbed, reference))
    changed, expected = perturbed.recording, reference.recording
    constants = constants_of(expected)
    for step in range(1, common + 1):
        own = agreement(step, changed.read(step), expected.read(step), constants)
        for quantity, by_variable in own.differences.items():
            for variable, relative in by_variable.items():
                key = quantity, variable
                largest[key] = max(largest.get(key, 0.0), relative)
        found.append(dict(largest))
    return found
