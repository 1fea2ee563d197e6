"""The analysis of a comparison: the content of comparison.json."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.config.comparison import ComparisonConfig
from trainers.experiments.arms import Arm
from trainers.experiments.compare.caveats import (
    remarks_on,
    remarks_on_batches,
    remarks_on_target,
)
from trainers.experiments.compare.comparisons import (
    SPEED,
    compare_with_control,
    differences_by_seed,
    metrics_of,
)
from trainers.experiments.compare.controlled_settings import (
    differing_settings,
    remarks_on_beginnings,
)
from trainers.experiments.compare.sequential import Look
from trainers.experiments.compare.statistics import CONFIDENCE, POWER, SIGNIFICANCE
from trainers.experiments.run_record import Run

SCHEMA_VERSION = 1


def conclude(
    arms: Sequence[Arm],
    runs: Sequence[Run],
    settings: ComparisonConfig,
    look: Look,
) -> dict[str, Any]:
    """Returns the content of comparison.json, without its origin.

    The arms are in the order of the report, and their runs in any state.
    """
    by_arm = runs_by_arm(arms, runs)
    differing = differing_settings(arms)
    control = control_of(arms, by_arm)
    # Speeds are compared with those without distribution.
    alone = [arm.name for arm in arms if not _is_distributed(arm)]
    undistributed = by_arm[control] if control in alone else []
    return {
        "schema_version": SCHEMA_VERSION,
        "control": control,
        "seeds": sorted({run.seed for run in runs}),
        "significance": SIGNIFICANCE,
        "confidence": CONFIDENCE,
        "power": POWER,
        "speed_margin_percent": settings.speed_margin_percent,
        "accuracy_margin_points": settings.accuracy_margin_points,
        "target_accuracy": settings.target_accuracy,
        "different_settings": differing,
        "allowed_different": sorted(settings.allow_different or ()),
        "remarks": [
            *remarks_on_beginnings(
                runs, differing.keys(), settings.allow_different or ()
            ),
            *remarks_on_batches(arms),
            *remarks_on_target(by_arm, settings.target_accuracy),
            *remarks_on(by_arm, differing),
        ],
        "arms": [_arm(arm, by_arm[arm.name], undistributed, settings) for arm in arms],
        "comparisons": compare_with_control(
            by_arm, control, metrics_of(by_arm, settings), settings, look
        ),
    }


def runs_by_arm(arms: Sequence[Arm], runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Returns the runs by name of their arm, in the order of the arms."""
    return {arm.name: [r for r in runs if r.arm == arm.name] for arm in arms}


def control_of(arms: Sequence[Arm], by_arm: Mapping[str, list[Run]]) -> str | None:
    """Returns the arm without distribution, or else the first that completed.

    It is None if no run completed.
    """
    able = [arm for arm in arms if any(run.is_completed for run in by_arm[arm.name])]
    # The sort is stable and False sorts before True: undistributed arms come first, all
    # others keep their order.
    able.sort(key=_is_distributed)
    return able[0].name if able else None


def _is_distributed(arm: Arm) -> bool:
    return arm.config.strategy.traits.is_distributed


def _arm(
    arm: Arm,
    runs: Sequence[Run],
    undistributed: Sequence[Run],
    settings: ComparisonConfig,
) -> dict[str, Any]:
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
        "scaling_efficiency": _scaling_efficiency(runs, undistributed, settings),
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
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for row in figures for name in row):
        known = [value for row in figures if (value := row.get(name)) is not None]
        found[name] = statistics.fmean(known) if known else None
    return found


def _scaling_efficiency(
    runs: Sequence[Run], undistributed: Sequence[Run], settings: ComparisonConfig
) -> float | None:
    """Returns speed over that of as many independent undistributed copies.

    It is the geometric mean over seeds; None unless the control is undistributed.
    """
    ratios, _ = differences_by_seed(runs, undistributed, SPEED, settings)
    if not ratios:
        return None
    replicas = next(r.result.get("num_replicas") for r in runs if r.is_completed) or 1
    # A mean of logarithms is the logarithm of the geometric mean.
    return math.exp(statistics.fmean(ratios)) / replicas
