"""Verdicts in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainers.config.comparison import FEWEST_SEEDS
from trainers.experiments.compare.statistics import SIGNIFICANCE

# Kinds of verdict, for programs that read comparison.json.
DIFFERENT, EQUIVALENT, EQUAL = "different", "equivalent", "equal"
UNDETECTED, TOO_FEW, UNKNOWN = "no_detectable_difference", "too_few_seeds", "unknown"

# Percentage points in an accuracy of 1.
_POINTS = 100


def of_ratio(comparison: Mapping[str, Any]) -> tuple[str, str]:
    """Returns kind and words of a verdict on a metric that is compared by ratio.

    Args:
      comparison: Entry of `comparisons` in comparison.json, without its verdict.
    """
    kind, words = _without_an_answer(comparison)
    if kind:
        return kind, words
    ratio = comparison["estimate"]
    low, high = comparison["interval"]
    more, less, quantity = comparison["words"]
    if comparison["deviation"] == 0 and ratio == 1:
        return EQUAL, f"{quantity} equal in all {comparison['num_pairs']} seeds"
    within = _margin(comparison)
    if comparison["p_value_holm"] >= SIGNIFICANCE:
        if within:
            return EQUIVALENT, f"{quantity} equivalent {within}"
        least = _percent(comparison["detectable"])
        return UNDETECTED, _cannot_tell(f"{least} in {quantity}")
    # The reciprocal of an interval has its ends exchanged: "slower by 2x", not "0.5x".
    words = (
        f"{more} by {_times(ratio, low, high)}"
        if ratio >= 1
        else f"{less} by {_times(1 / ratio, 1 / high, 1 / low)}"
    )
    return DIFFERENT, words + (f", {within} all the same" if within else "")


def of_accuracy(comparison: Mapping[str, Any]) -> tuple[str, str]:
    """Returns kind and words of a verdict on accuracy, which tests equivalence too.

    Args:
      comparison: Entry of `comparisons` in comparison.json, without its verdict.
    """
    kind, words = _without_an_answer(comparison)
    if kind:
        return kind, words
    points = _POINTS * comparison["estimate"]
    if comparison["deviation"] == 0 and points == 0:
        return EQUAL, f"the same accuracy in all {comparison['num_pairs']} seeds"
    within = _margin(comparison)
    if comparison["p_value_holm"] < SIGNIFICANCE:
        # A significant interval lies on one side of zero, so absolute values keep its
        # ends.
        near, far = sorted(_POINTS * abs(end) for end in comparison["interval"])
        verb = "loses" if points < 0 else "gains"
        digits = _digits(abs(points), far - near)
        words = (
            f"{verb} {abs(points):.{digits}f} points of accuracy "
            f"({near:.{digits}f} to {far:.{digits}f})"
        )
        return DIFFERENT, words + (f", {within} all the same" if within else "")
    if within:
        return EQUIVALENT, f"accuracy equivalent {within}"
    least = f"{_POINTS * comparison['detectable']:.2g} points"
    return UNDETECTED, _cannot_tell(f"{least} of accuracy")


def _margin(comparison: Mapping[str, Any]) -> str:
    """Returns the margin in words if the arms are equivalent within it, else ""."""
    tested = comparison["equivalence"]
    if tested is None or tested["p_value_holm"] >= SIGNIFICANCE:
        return ""
    unit = {"percent": "%", "points": "points"}[tested["unit"]]
    return f"within {tested['margin']:g} {unit}"


def _without_an_answer(comparison: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the verdict on too few pairs of runs; empty strings if not too few."""
    pairs = comparison["num_pairs"]
    if pairs == 0:
        return UNKNOWN, f"unknown: {comparison['reason']}"
    if pairs < FEWEST_SEEDS:
        return TOO_FEW, (
            f"too few seeds to conclude: {pairs} in common, at least {FEWEST_SEEDS} "
            "needed"
        )
    return "", ""


def _cannot_tell(least: str) -> str:
    return f"cannot tell: would need a difference of {least}"


def _percent(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    return f"{percent:,.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _times(ratio: float, low: float, high: float) -> str:
    """Returns a ratio and its interval, with decimals that distinguish them.

    The decimals distinguish the ratio from 1, and the ends of the interval from each
    other.
    """
    digits = max(_digits(ratio, high - low), _digits(ratio - 1, high - low))
    return f"{ratio:.{digits}f}x ({low:.{digits}f} to {high:.{digits}f})"


def _digits(value: float, width: float) -> int:
    """Returns the decimals that show a value to two figures and an interval to one."""
    smallest = min(value / 10 or math.inf, width or math.inf)
    if not 0 < smallest < math.inf:
        return 1
    # Between one decimal and four, so that a tiny interval stays readable.
    return min(max(1, math.ceil(-math.log10(smallest))), 4)
