"""The comparisons of every arm with the control, metric by metric."""

import math
from collections.abc import Mapping, Sequence
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

# Entry of `comparisons` in comparison.json, and its differences by seed if it has any.
_Compared = tuple[dict[str, Any], Paired | None]


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
    families: dict[str, list[_Compared]] = {}
    entries = []
    for metric in metrics:
        for arm in others:
            differences, reason = differences_by_seed(
                by_arm[arm], by_arm.get(control or "", []), metric, settings
            )
            summary = None
            if differences:
                summary = paired(
                    differences,
                    resolution=resolution_of(metric, by_arm[arm]),
                    confidence=1 - level,
                    with_bootstrap=with_bootstrap,
                )
            entries.append(_entry(metric, arm, control, summary, reason))
            family = "deciding" if metric in DECIDING else metric
            families.setdefault(family, []).append((entries[-1], summary))
    for members in families.values():
        _test(members, settings, look)
    for entry in entries:
        if entry["kind"] == "ratio" or entry["metric"] == ACCURACY:
            kind, words = verdict_of(entry)
            entry["verdict"] = {"kind": kind, "words": words}
    return entries


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


def _back(metric: str, value: float) -> float:
    """Converts a difference of logarithms into a ratio; returns others as they are.

    The ratio is limited to what a float can hold: the interval of very few, very
    different runs can be wider than that.
    """
    if metric not in _RATIOS:
        return value
    # exp(710) is beyond float64.
    return math.exp(min(max(value, -700.0), 700.0))


def _entry(
    metric: str, arm: str, control: str | None, summary: Paired | None, reason: str
) -> dict[str, Any]:
    """Returns an entry of comparison.json, with None for what tests find."""
    entry: dict[str, Any] = {
        "metric": metric,
        "arm": arm,
        "control": control,
        "kind": "ratio" if metric in _RATIOS else "difference",
        "words": list(_RATIOS.get(metric, ())),
        "num_pairs": summary.num_pairs if summary else 0,
        "reason": reason,
        **dict.fromkeys(("estimate", "interval", "bootstrap_interval", "deviation")),
        **dict.fromkeys(("p_value", "p_value_looks", "p_value_holm", "detectable")),
        "equivalence": None,
        "verdict": None,
    }
    if summary is not None:
        entry["estimate"] = _back(metric, summary.mean)
        entry["deviation"] = summary.deviation
        for name in ("interval", "bootstrap_interval"):
            if (ends := getattr(summary, name)) is not None:
                entry[name] = [_back(metric, end) for end in ends]
    return entry


def _test(family: Sequence[_Compared], settings: ComparisonConfig, look: Look) -> None:
    """Tests a family of comparisons for differences, and for equivalence."""
    level = look.level(SIGNIFICANCE, 2)
    tested: list[tuple[dict[str, Any], Paired]] = []
    for entry, summary in family:
        # With fewer seeds the estimate is reported, but nothing is tested.
        if summary is None or summary.p_value is None:
            continue
        if summary.num_pairs < FEWEST_SEEDS:
            continue
        tested.append((entry, summary))
        entry["p_value"] = summary.p_value
        entry["p_value_looks"] = look.adjusted_p_value(summary.p_value, 2)
        entry["p_value_holm"] = entry["p_value_looks"]
        margin = margin_of(entry["metric"], settings)
        if margin is not None:
            p_value = equivalence_p_value(summary, margin)
            is_speed = entry["metric"] == SPEED
            entry["equivalence"] = {
                "margin": settings.speed_margin_percent
                if is_speed
                else settings.accuracy_margin_points,
                "unit": "percent" if is_speed else "points",
                "p_value": p_value,
                "p_value_looks": look.adjusted_p_value(p_value, 1),
                "p_value_holm": None,
            }
    # Values that are equal in all seeds can never be called different, so that they
    # take no part of the error rate.
    uncertain = [
        entry for entry, summary in tested if summary.deviation or summary.mean
    ]
    _correct(uncertain)
    _correct([entry["equivalence"] for entry, _ in tested if entry["equivalence"]])
    for entry, summary in tested:
        least = detectable(summary, max(len(uncertain), 1), level)
        entry["detectable"] = _back(entry["metric"], least)


def _correct(tests: Sequence[dict[str, Any]]) -> None:
    """Applies Holm's correction to tests that share an error rate."""
    adjusted = holm([test["p_value_looks"] for test in tests])
    for test, p_value in zip(tests, adjusted, strict=True):
        test["p_value_holm"] = p_value
