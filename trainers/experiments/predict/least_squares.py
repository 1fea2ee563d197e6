"""Coefficients that are not negative, and which of them the data tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import optimize

# By how much the median step of a short run differs from what others let expect: the
# errors in the middle were 1 to 7 % on two cores (docs/design.md, "Predictions").
RUNS_DIFFER = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """Of a least squares problem.

    Attributes:
      coefficients: none negative; zero for a column that is a sum of multiples of
        those before it, which have its part.
      error: that they leave, relative.
      is_identifiable: of each, whether it is more than what runs differ by could have
        made it.
    """

    coefficients: Sequence[float]
    error: float
    is_identifiable: Sequence[bool]


def solve(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> Solution:
    """Least squares of errors that are relative to weights.

    Columns are scaled to one before: bytes are in millions, latencies in microseconds.

    Args:
      rows: of each run, what it has of each coefficient.
      values: what is to come of them.
      weights: what an error is relative to, of each run.
    """
    matrix = np.array(rows) / np.array(weights)[:, None]
    scales = np.maximum(np.abs(matrix).max(axis=0), np.finfo(float).tiny)
    matrix = matrix / scales
    kept = _independent(matrix)
    found, error = optimize.nnls(matrix[:, kept], np.array(values) / np.array(weights))
    # What the differences between runs come to in each coefficient if all runs count.
    part = matrix[:, kept]
    spread = RUNS_DIFFER * np.sqrt(np.diag(np.linalg.inv(part.T @ part)))
    coefficients, is_identifiable = (
        np.zeros(len(scales)),
        np.zeros(len(scales), dtype=bool),
    )
    coefficients[kept] = found / scales[kept]
    is_identifiable[kept] = found > spread
    return Solution(
        coefficients=coefficients.tolist(),
        error=float(error),
        is_identifiable=is_identifiable.tolist(),
    )


def _independent(matrix: np.ndarray) -> list[int]:
    """Columns that are no combination of those before them."""
    kept: list[int] = []
    for column in range(matrix.shape[1]):
        if np.linalg.matrix_rank(matrix[:, [*kept, column]]) > len(kept):
            kept.append(column)
    return kept
