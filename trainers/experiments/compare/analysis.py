"""The analysis of a comparison: the content of comparison.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strategies import registry
from trainers.config.comparison import ComparisonConfig
from trainers.experiments.arms import Arm
from trainers.experiments.compare import verdicts
from trainers.experiments.compare.caveats import remarks_on, remarks_on_batches
from trainers.experiments.compare.controlled_settings import differing_settings
from trainers.experiments.compare.sequential import Look
from trainers.experiments.compare.statistics import (
    CONFIDENCE,
    FEWEST_SEEDS,
    POWER,
    SIGNIFICANCE,
    detectable,
    equivalence_p_value,
    holm,
    paired,
)
from trainers.experiments.run_record import Run

SCHEMA_VERSION = 1

# What is compared by its ratio, with the words for more of it, for less, and its name.
_RATIOS = {
    "examples_per_second": ("faster", "slower", "speed"),
    "step_milliseconds_p50": (
        *("longer steps", "shorter steps"),
        "the length of steps",
    ),
    "seconds_to_target_accuracy": (
        *("later at the target accuracy", "earlier at the target accuracy"),
        "the time to the target accuracy",
    ),
    "wall_seconds": (
        *("longer in all", "shorter in all"),
        "the time of the whole run",
    ),
    "peak_memory_mib": (
        *("more memory", "less memory"),
        "memory",
    ),
}
_DIFFERENCES = ("eval_accuracy", "eval_loss", "train_loss")


def conclude(
    arms: Sequence[Arm],
    runs: Sequence[Run],
    settings: ComparisonConfig,
    look: Look,
) -> dict[str, Any]:
    """Returns the content of comparison.json, without its origin.

    Args:
      arms: Arms in the order of the report.
      runs: Runs of all arms, in any state.
      settings: Margin, target accuracy and settings that are allowed to differ.
      look: Look at these seeds, which the plan has.
    """
    by_arm = {arm.name: [r for r in runs if r.arm == arm.name] for arm in arms}
    differing = differing_settings(arms)
    control = _control(arms, by_arm)
    return {
        "schema_version": SCHEMA_VERSION,
        "control": control,
        "seeds": sorted({run.seed for run in runs}),
        "significance": SIGNIFICANCE,
        "confidence": CONFIDENCE,
        "power": POWER,
        "accuracy_margin_points": settings.accuracy_margin_points,
        "target_accuracy": settings.target_accuracy,
        "different_settings": differing,
        "allowed_different": sorted(settings.allow_different or ()),
        "remarks": remarks_on_batches(arms) + remarks_on(by_arm, differing),
        "arms": [_arm(arm, by_arm, control, settings) for arm in arms],
        "comparisons": _comparisons(by_arm, control, settings, look),
    }


def _control(arms: Sequence[Arm], by_arm: Mapping[str, list[Run]]) -> str | None:
    """Returns the arm without distribution, or else the first that completed.

    It is None if no run completed.
    """
    able = [arm for arm in arms if any(run.is_completed for run in by_arm[arm.name])]
    # The sort is stable and False sorts before True: undistributed arms come first, all
    # others keep their order.
    able.sort(key=lambda arm: not _is_undistributed(arm))
    return able[0].name if able else None


def _is_undistributed(arm: Arm) -> bool:
    return registry.traits(arm.config.strategy.strategy).max_replicas == 1


def _arm(
    arm: Arm,
    by_arm: Mapping[str, list[Run]],
    control: str | None,
    settings: ComparisonConfig,
) -> dict[str, Any]:
    runs = by_arm[arm.name]
    figures = {run.seed: run.figures(settings.target_accuracy) for run in runs}
    completed = [run.result for run in runs if run.is_completed]
    result = completed[0] if completed else {}
    return {
        "name": arm.name,
        "strategy": arm.config.strategy.strategy,
        "num_replicas": result.get("num_replicas"),
        "num_completed": len(completed),
        "config": arm.config.to_dict(),
        "communication": result.get("communication"),
        "staleness": result.get("staleness"),
        "versions": result.get("versions"),
        "hardware": result.get("hardware"),
        "scaling_efficiency": _scaling_efficiency(arm, by_arm, control),
        "means": _means(list(figures.values())),
        "runs": [
            {
                "seed": run.seed,
                "run_dir": str(run.path),
                "status": run.status,
                "reason": run.reason,
                "figures": figures[run.seed],
                "seconds": run.result.get("seconds"),
                "measured": dict(run.measured) or None,
            }
            for run in runs
        ],
    }


def _means(figures: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    found = {}
    for name in dict.fromkeys(name for row in figures for name in row):
        values = [row.get(name) for row in figures]
        known = [value for value in values if value is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def _scaling_efficiency(
    arm: Arm, by_arm: Mapping[str, list[Run]], control: str | None
) -> float | None:
    """Returns speed over that of as many independent undistributed copies.

    It is the geometric mean over seeds; None unless the control is undistributed.
    """
    completed = [run for run in by_arm[arm.name] if run.is_completed]
    undistributed = [r for r in by_arm.get(control or "", ()) if r.is_completed]
    if not completed or not undistributed:
        return None
    traits = undistributed[0].result["traits"]
    if not isinstance(traits, Mapping) or traits.get("max_replicas") != 1:
        return None
    # A mean of logarithms is the logarithm of the geometric mean.
    ratios, _ = _pairs(completed, undistributed, "examples_per_second", None, math.log)
    if not ratios:
        return None
    replicas = completed[0].result.get("num_replicas") or 1
    return math.exp(sum(ratios) / len(ratios)) / replicas


def _comparisons(
    by_arm: Mapping[str, list[Run]],
    control: str | None,
    settings: ComparisonConfig,
    look: Look,
) -> list[dict[str, Any]]:
    """Compares every metric of every arm with the control."""
    others = [name for name in by_arm if name != control]
    found = []
    for metric in (*_RATIOS, *_DIFFERENCES, *other_metrics(by_arm)):
        if metric == "seconds_to_target_accuracy" and settings.target_accuracy is None:
            continue
        entries = [
            _compared(by_arm, arm, control, metric, settings, look) for arm in others
        ]
        # Difference and equivalence are two families of tests, corrected separately.
        _correct(entries, "p_value_looks", "p_value_holm")
        _correct([e["equivalence"] for e in entries], "p_value_looks", "p_value_holm")
        for entry in entries:
            judge = verdicts.of_ratio if metric in _RATIOS else verdicts.of_accuracy
            if metric in _RATIOS or metric == "eval_accuracy":
                kind, words = judge(entry)
                entry["verdict"] = {"kind": kind, "words": words}
        found += entries
    return found


def other_metrics(by_arm: Mapping[str, list[Run]]) -> list[str]:
    """Returns the sorted names of evaluated metrics except loss and accuracy."""
    completed = (r for runs in by_arm.values() for r in runs if r.is_completed)
    return sorted({name for run in completed for name in run.other_metrics()})


def _correct(entries: Sequence[dict[str, Any] | None], key: str, into: str) -> None:
    """Applies Holm's correction over the arms of one metric."""
    tested = [e for e in entries if e is not None and e[key] is not None]
    for entry, p_value in zip(tested, holm([e[key] for e in tested]), strict=True):
        entry[into] = p_value


def _compared(
    by_arm: Mapping[str, list[Run]],
    arm: str,
    control: str | None,
    metric: str,
    settings: ComparisonConfig,
    look: Look,
) -> dict[str, Any]:
    is_ratio = metric in _RATIOS
    differences, reason = _pairs(
        by_arm[arm],
        by_arm.get(control or "", []),
        metric,
        settings.target_accuracy,
        math.log if is_ratio else float,
    )
    back: Callable[[float], float] = math.exp if is_ratio else float
    entry: dict[str, Any] = {
        "metric": metric,
        "arm": arm,
        "control": control,
        "kind": "ratio" if is_ratio else "difference",
        "words": list(_RATIOS.get(metric, ())),
        "num_pairs": len(differences),
        "reason": reason,
        **dict.fromkeys(("estimate", "interval", "bootstrap_interval", "deviation")),
        **dict.fromkeys(("p_value", "p_value_looks", "p_value_holm", "detectable")),
        "equivalence": None,
        "verdict": None,
    }
    if not differences:
        return entry
    level = look.level(SIGNIFICANCE, 2)
    summary = paired(differences, confidence=1 - level)
    entry["estimate"] = back(summary.mean)
    entry["deviation"] = summary.deviation
    for name in ("interval", "bootstrap_interval"):
        ends = getattr(summary, name)
        entry[name] = None if ends is None else [_capped(back, end) for end in ends]
    # With fewer seeds the estimate is reported, but nothing is tested.
    if summary.p_value is None or summary.num_pairs < FEWEST_SEEDS:
        return entry
    entry["p_value"] = summary.p_value
    entry["p_value_looks"] = look.adjusted_p_value(summary.p_value, 2)
    # Each arm but the control is one test.
    entry["detectable"] = _capped(back, detectable(summary, len(by_arm) - 1, level))
    if metric == "eval_accuracy":
        points = settings.accuracy_margin_points
        # The margin is in percentage points, accuracies are fractions.
        p_value = equivalence_p_value(summary, points / 100)
        entry["equivalence"] = {
            "margin_points": points,
            "p_value": p_value,
            "p_value_looks": look.adjusted_p_value(p_value, 1),
            "p_value_holm": None,
        }
    return entry


def _capped(back: Callable[[float], float], value: float) -> float:
    """Converts an end of an interval, limited to what a float can hold.

    The interval of very few, very different runs can be wider than that.
    """
    # exp(710) is beyond float64.
    return back(min(max(value, -700.0), 700.0))


def _pairs(
    arm: Sequence[Run],
    control: Sequence[Run],
    metric: str,
    target_accuracy: float | None,
    scale: Callable[[float], float],
) -> tuple[list[float], str]:
    """Returns the differences by seed, and the reason if there are none."""
    if not any(run.is_completed for run in control):
        return [], "no run of the control completed"
    if not any(run.is_completed for run in arm):
        return [], "no run of this arm completed"
    ours, theirs = (
        {run.seed: run.figures(target_accuracy).get(metric) for run in runs}
        for runs in (arm, control)
    )
    found = []
    for seed in sorted(set(ours) & set(theirs)):
        one, other = ours[seed], theirs[seed]
        if one is None or other is None:
            continue
        # A logarithm needs positive values.
        if scale is math.log and not (one > 0 and other > 0):
            continue
        found.append(scale(one) - scale(other))
    return found, "" if found else "not measured in both arms with the same seed"
