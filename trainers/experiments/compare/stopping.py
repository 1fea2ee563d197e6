"""The state of a comparison after a look: its verdicts, and arms that cannot win."""

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trainers.config.comparison import FEWEST_SEEDS, ComparisonConfig
from trainers.experiments.compare.comparisons import (
    ACCURACY,
    DECIDING,
    SPEED,
    RunsByArm,
    compare_with_control,
    differences_by_seed,
    margin_of,
    resolution_of,
)
from trainers.experiments.compare.sequential import Look
from trainers.experiments.compare.statistics import (
    SIGNIFICANCE,
    Paired,
    equivalence_p_value,
    holm,
    paired,
)
from trainers.experiments.compare.verdicts import TOO_FEW, UNDETECTED, UNKNOWN

_WORDS = {SPEED: "speed", ACCURACY: "accuracy"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """State of a comparison after a look.

    Attributes:
      num_seeds: Number of seeds so far.
      num_verdicts: Number of verdicts so far.
      undecided: Metrics in words, by name of each arm that has one without a verdict.
      probable_num_seeds: Number of seeds after which all have a verdict if means and
        deviations stay as they are; at most that of the last look.
    """

    num_seeds: int
    num_verdicts: int
    undecided: Mapping[str, Sequence[str]]
    probable_num_seeds: int

    @property
    def is_decided(self) -> bool:
        return not self.undecided


def state_at(
    num_seeds: int,
    by_arm: RunsByArm,
    control: str | None,
    settings: ComparisonConfig,
    look: Look,
    dropped: Collection[str],
) -> State:
    """Returns the state of a comparison after a number of seeds.

    Arms that were dropped, and arms without a run to compare (verdict "unknown"), count
    as decided.
    """
    entries = [
        entry
        for entry in compare_with_control(
            by_arm, control, DECIDING, settings, look, with_bootstrap=False
        )
        if entry["arm"] not in dropped and entry["verdict"]["kind"] != UNKNOWN
    ]
    left = [e for e in entries if e["verdict"]["kind"] in (UNDETECTED, TOO_FEW)]
    undecided: dict[str, list[str]] = {}
    for entry in left:
        undecided.setdefault(entry["arm"], []).append(_WORDS[entry["metric"]])
    probable = num_seeds
    if left:
        pairs = [
            _probable_num_pairs(entry, by_arm, settings, look, len(entries))
            for entry in left
        ]
        # The last look is the end, with or without all verdicts.
        probable = min(max(num_seeds + 1, *pairs), look.last)
    return State(
        num_seeds=num_seeds,
        num_verdicts=len(entries) - len(left),
        undecided=undecided,
        probable_num_seeds=probable,
    )


def _probable_num_pairs(
    entry: Mapping[str, Any],
    by_arm: RunsByArm,
    settings: ComparisonConfig,
    look: Look,
    num_tests: int,
) -> int:
    """Returns the number of pairs at which a comparison will probably be decided."""
    metric = entry["metric"]
    margin = margin_of(metric, settings)
    differences, _ = differences_by_seed(
        by_arm[entry["arm"]], by_arm[entry["control"]], metric, settings
    )
    if len(differences) < FEWEST_SEEDS or margin is None:
        return look.last
    resolution = resolution_of(metric, by_arm[entry["arm"]])
    summary = paired(differences, resolution=resolution, with_bootstrap=False)
    # Bonferroni's level, the strictest of Holm's.
    level = SIGNIFICANCE / num_tests
    return next(
        (
            num_pairs
            for num_pairs in range(len(differences) + 1, look.last)
            if _would_decide(
                dataclasses.replace(summary, num_pairs=num_pairs), margin, look, level
            )
        ),
        look.last,
    )


def _would_decide(summary: Paired, margin: float, look: Look, level: float) -> bool:
    of_difference = look.adjusted_p_value(summary.p_value or 0.0, 2)
    of_equivalence = look.adjusted_p_value(equivalence_p_value(summary, margin), 1)
    return min(of_difference, of_equivalence) < level


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DroppedArm:
    """Arm that was dropped, and the reason.

    Attributes:
      arm: Name of the arm.
      faster: Name of the fastest arm that it was shown to be slower than.
      ratio: Speed of that arm over the speed of the dropped one.
      num_seeds: Number of seeds after which it was dropped.
    """

    arm: str
    faster: str
    ratio: float
    num_seeds: int

    def in_words(self) -> str:
        return (
            f"{self.arm} was dropped after {self.num_seeds} seeds: {self.faster} is "
            f"faster by {self.ratio:.2f}x."
        )


def arms_to_drop(
    num_seeds: int,
    by_arm: RunsByArm,
    control: str | None,
    settings: ComparisonConfig,
    look: Look,
    dropped: Collection[str],
) -> list[DroppedArm]:
    """Returns the arms that another arm is shown to be faster than.

    All pairs of arms are tested, with an error rate of 5 % for all pairs and looks
    together. The control is never dropped, because the others are compared with it.
    """
    tested: list[tuple[str, str, Paired]] = []
    for one, other in itertools.combinations(by_arm, 2):
        differences, _ = differences_by_seed(
            by_arm[one], by_arm[other], SPEED, settings
        )
        if len(differences) >= FEWEST_SEEDS:
            summary = paired(differences, with_bootstrap=False)
            tested.append((one, other, summary))
    p_values = holm([look.adjusted_p_value(s.p_value or 0.0, 2) for *_, s in tested])
    found: dict[str, DroppedArm] = {}
    for (one, other, summary), p_value in zip(tested, p_values, strict=True):
        slower, faster = (one, other) if summary.mean < 0 else (other, one)
        if p_value >= SIGNIFICANCE or slower in dropped or slower == control:
            continue
        ratio = math.exp(abs(summary.mean))
        if slower not in found or ratio > found[slower].ratio:
            found[slower] = DroppedArm(
                arm=slower, faster=faster, ratio=ratio, num_seeds=num_seeds
            )
    return list(found.values())
