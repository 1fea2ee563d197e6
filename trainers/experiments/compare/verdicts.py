"""Verdicts in words."""

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


def verdict_of(comparison: Mapping[str, Any]) -> tuple[str, str]:
    """Returns kind and words of the verdict on a ratio or on accuracy.

    `comparison` is an entry of `comparisons` in comparison.json, without its verdict.
    """
    pairs = comparison["num_pairs"]
    if pairs == 0:
        return UNKNOWN, f"unknown: {comparison['reason']}"
    if pairs < FEWEST_SEEDS:
        return TOO_FEW, (
            f"too few seeds to conclude: {pairs} in common, at least {FEWEST_SEEDS} "
            "needed"
        )
    is_ratio = comparison["kind"] == "ratio"
    quantity = comparison["words"][2] if is_ratio else "accuracy"
    if comparison["deviation"] == 0 and comparison["estimate"] == (
        1 if is_ratio else 0
    ):
        equal = f"{quantity} equal" if is_ratio else "the same accuracy"
        return EQUAL, f"{equal} in all {pairs} seeds"
    within = _margin(comparison)
    if comparison["p_value_holm"] < SIGNIFICANCE:
        words = _ratio(comparison) if is_ratio else _points(comparison)
        return DIFFERENT, words + (f", {within} all the same" if within else "")
    if within:
        return EQUIVALENT, f"{quantity} equivalent {within}"
    least = comparison["detectable"]
    needed = f"{_POINTS * least:.2g} points of accuracy"
    if is_ratio:
        needed = f"{_percent(least)} in {quantity}"
    return UNDETECTED, f"cannot tell: would need a difference of {needed}"


def _ratio(comparison: Mapping[str, Any]) -> str:
    """Returns a significant ratio in words, such as `slower by 2.1x (1.9 to 2.4)`."""
    ratio, (low, high) = comparison["estimate"], comparison["interval"]
    more, less, _ = comparison["words"]
    if ratio >= 1:
        return f"{more} by {_times(ratio, low, high)}"
    # The reciprocal of an interval has its ends exchanged: "slower by 2x", not "0.5x".
    return f"{less} by {_times(1 / ratio, 1 / high, 1 / low)}"


def _points(comparison: Mapping[str, Any]) -> str:
    """Returns a significant difference of accuracies in words."""
    points = _POINTS * comparison["estimate"]
    # A significant interval lies on one side of zero, so absolute values keep its ends.
    near, far = sorted(_POINTS * abs(end) for end in comparison["interval"])
    verb = "loses" if points < 0 else "gains"
    digits = _digits(abs(points), far - near)
    return (
        f"{verb} {abs(points):.{digits}f} points of accuracy "
        f"({near:.{digits}f} to {far:.{digits}f})"
    )


def _margin(comparison: Mapping[str, Any]) -> str:
    """Returns the margin in words if the arms are equivalent within it, else ""."""
    tested = comparison["equivalence"]
    if tested is None or tested["p_value_holm"] >= SIGNIFICANCE:
        return ""
    unit = {"percent": "%", "points": "points"}[tested["unit"]]
    return f"within {tested['margin']:g} {unit}"


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
