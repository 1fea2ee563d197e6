"""The comparisons of every arm with the control, metric by metric."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainers.config.comparison import FEWEST_SEEDS, ComparisonConfig
from trainers.experiments.compare.sequential import Look
from trainers.experiments.compare.statistics import (
    SIGNIFICANCE,
    Paired,
    detectable,
    equivalence_p_value,
    holm,
    paired,
)
from trainers.experiments.compare.verdicts import verdict_of
from trainers.experiments.run_record import Run

RunsByArm = Mapping[str, Sequence[Run]]

SPEED, ACCURACY = "examples_per_second", "eval_accuracy"
# Metrics whose verdicts end a comparison. They share one error rate.
DECIDING = (SPEED, ACCURACY)

# Quantities compared by ratio, with the words for more, for less, and their names.
_RATIOS = {
    SPEED: ("faster", "slower", "speed"),
    "step_milliseconds_p50": ("longer steps", "shorter steps", "the length of steps"),
    "seconds_to_target_accuracy": (
        *("later at the target accuracy", "earlier at the target accuracy"),
        "the time to the target accuracy",
    ),
    "wall_seconds": ("longer in all", "shorter in all", "the time of the whole run"),
    "peak_memory_mib": ("more memory", "less memory", "memory"),
}
_DIFFERENCES = (ACCURACY, "eval_loss", "train_loss")


def metrics_of(by_arm: RunsByArm, settings: ComparisonConfig) -> list[str]:
    """Returns the names of all metrics that are compared, in the order of a report."""
    completed = (r for runs in by_arm.values() for r in runs if r.is_completed)
    others = sorted({name for run in completed for name in run.other_metrics()})
    found = [*_RATIOS, *_DIFFERENCES, *others]
    if settings.target_accuracy is None:
        found.remove("seconds_to_target_accuracy")
    return found


def compare_with_control(
    by_arm: RunsByArm,
    control: str | None,
    metrics: Sequence[str],
    settings: ComparisonConfig,
    look: Look,
    *,
    with_bootstrap: bool = True,
) -> list[dict[str, Any]]:
    """Compares every arm with the control; returns `comparisons` of comparison.json.

    P-values are corrected for all arms and the metrics in `DECIDING` together, and for
    all arms of each other metric. Difference and equivalence are two families of tests:
    equal arms can only be called different wrongly, and different arms only
    equivalent.

    Args:
      by_arm: Runs by name of the arm, in any state.
      control: Name of the arm that the others are compared with; None if no run
        completed.
      metrics: Names of the metrics, in the order of the result.
      settings: Margins and target accuracy.
      look: Look at these seeds, which the plan has.
      with_bootstrap: False leaves out the bootstrap intervals, which take long.
    """
    others = [name for name in by_arm if name != control]
    level = look.level(SIGNIFICANCE, 2)
    found = []
    for metric in metrics:
        for arm in others:
            differences, reason = differences_by_seed(
                by_arm[arm], by_arm.get(control or "", []), metric, settings
            )
            entry = _empty_entry(metric, arm, control, len(differences), reason)
            compared = _Compared(entry)
            found.append(compared)
            if differences:
                compared.describe(
                    paired(
                        differences,
                        resolution=resolution_of(metric, by_arm[arm]),
                        confidence=1 - level,
                        with_bootstrap=with_bootstrap,
                    )
                )
    families: dict[str, list[_Compared]] = {}
    for comparison in found:
        metric = comparison.entry["metric"]
        family = "deciding" if metric in DECIDING else metric
        families.setdefault(family, []).append(comparison)
    for members in families.values():
        _test(members, settings, look)
    for comparison in found:
        comparison.judge()
    return [comparison.entry for comparison in found]


def differences_by_seed(
    arm: Sequence[Run],
    control: Sequence[Run],
    metric: str,
    settings: ComparisonConfig,
) -> tuple[list[float], str]:
    """Returns the differences by seed, and the reason if there are none.

    Ratios are compared by differences of logarithms.
    """
    if not any(run.is_completed for run in control):
        return [], "no run of the control completed"
    if not any(run.is_completed for run in arm):
        return [], "no run of this arm completed"
    ours, theirs = (
        {run.seed: run.figures(settings.target_accuracy).get(metric) for run in runs}
        for runs in (arm, control)
    )
    found = []
    for seed in sorted(set(ours) & set(theirs)):
        one, other = ours[seed], theirs[seed]
        if one is None or other is None:
            continue
        if metric not in _RATIOS:
            found.append(one - other)
        # A logarithm needs positive values.
        elif one > 0 and other > 0:
            found.append(math.log(one) - math.log(other))
    name = _RATIOS[metric][-1] if metric in _RATIOS else metric.removeprefix("eval_")
    reason = f"{name} was not measured in both arms with the same seed"
    return found, "" if found else reason


def resolution_of(metric: str, arm: Sequence[Run]) -> float:
    """Returns the smallest difference between two values of a metric; 0 for none."""
    if metric != ACCURACY:
        return 0.0
    counts = [run.result.get("eval_examples") for run in arm]
    return max((1 / count for count in counts if count), default=0.0)


def margin_of(metric: str, settings: ComparisonConfig) -> float | None:
    """Returns the margin of equivalence, of a ratio its logarithm; None for none."""
    if metric == SPEED:
        return math.log(1 + settings.speed_margin_percent / 100)
    # The margin is in percentage points, accuracies are fractions.
    return settings.accuracy_margin_points / 100 if metric == ACCURACY else None


@dataclasses.dataclass(slots=True)
class _Compared:
    """One entry of `comparisons` in comparison.json while it is made.

    Attributes:
      entry: Entry, with None for all that is unknown yet.
      summary: Differences, for ratios of logarithms; None without any.
    """

    entry: dict[str, Any]
    summary: Paired | None = None

    @property
    def is_ratio(self) -> bool:
        return self.entry["kind"] == "ratio"

    def describe(self, summary: Paired) -> None:
        """Writes the estimate and its intervals."""
        self.summary = summary
        self.entry["estimate"] = self.back(summary.mean)
        self.entry["deviation"] = summary.deviation
        for name in ("interval", "bootstrap_interval"):
            ends = getattr(summary, name)
            self.entry[name] = (
                None if ends is None else [self.back(end) for end in ends]
            )

    def back(self, value: float) -> float:
        """Converts a difference of logarithms into a ratio; returns others as they are.

        The ratio is limited to what a float can hold: the interval of very few, very
        different runs can be wider than that.
        """
        if not self.is_ratio:
            return value
        # exp(710) is beyond float64.
        return math.exp(min(max(value, -700.0), 700.0))

    def judge(self) -> None:
        """Writes the verdict, of metrics that have one."""
        entry = self.entry
        if self.is_ratio or entry["metric"] == ACCURACY:
            kind, words = verdict_of(entry)
            entry["verdict"] = {"kind": kind, "words": words}


def _empty_entry(
    metric: str, arm: str, control: str | None, num_pairs: int, reason: str
) -> dict[str, Any]:
    return {
        "metric": metric,
        "arm": arm,
        "control": control,
        "kind": "ratio" if metric in _RATIOS else "difference",
        "words": list(_RATIOS.get(metric, ())),
        "num_pairs": num_pairs,
        "reason": reason,
        **dict.fromkeys(("estimate", "interval", "bootstrap_interval", "deviation")),
        **dict.fromkeys(("p_value", "p_value_looks", "p_value_holm", "detectable")),
        "equivalence": None,
        "verdict": None,
    }


def _test(family: Iterable[_Compared], settings: ComparisonConfig, look: Look) -> None:
    """Tests a family of comparisons for differences, and for equivalence."""
    level = look.level(SIGNIFICANCE, 2)
    tested: list[tuple[_Compared, Paired]] = []
    for compared in family:
        entry, summary = compared.entry, compared.summary
        # With fewer seeds the estimate is reported, but nothing is tested.
        if summary is None or summary.p_value is None:
            continue
        if summary.num_pairs < FEWEST_SEEDS:
            continue
        tested.append((compared, summary))
        entry["p_value"] = summary.p_value
        entry["p_value_looks"] = look.adjusted_p_value(summary.p_value, 2)
        entry["p_value_holm"] = entry["p_value_looks"]
        margin = margin_of(entry["metric"], settings)
        if margin is not None:
            p_value = equivalence_p_value(summary, margin)
            entry["equivalence"] = {
                "margin": settings.speed_margin_percent
                if compared.is_ratio
                else settings.accuracy_margin_points,
                "unit": "percent" if compared.is_ratio else "points",
                "p_value": p_value,
                "p_value_looks": look.adjusted_p_value(p_value, 1),
                "p_value_holm": None,
            }
    # Values that are equal in all seeds can never be called different, so that they
    # take no part of the error rate.
    uncertain = [c.entry for c, summary in tested if summary.deviation or summary.mean]
    _correct(uncertain)
    _correct([c.entry["equivalence"] for c, _ in tested if c.entry["equivalence"]])
    for compared, summary in tested:
        least = detectable(summary, max(len(uncertain), 1), level)
        compared.entry["detectable"] = compared.back(least)


def _correct(tests: Sequence[dict[str, Any]]) -> None:
    """Applies Holm's correction to tests that share an error rate."""
    adjusted = holm([test["p_value_looks"] for test in tests])
    for test, p_value in zip(tests, adjusted, strict=True):
        test["p_value_holm"] = p_value
