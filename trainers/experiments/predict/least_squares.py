"""Non-negative coefficients, and which of them the data identify."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import optimize

# Relative difference of a short run's median step from its prediction by other runs:
# the median errors were 1 to 7 % on two cores (docs/prediction.md).
RUNS_DIFFER = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """Solution of a least squares problem.

    Attributes:
      coefficients: Coefficients, none negative; zero for a column that is a linear
        combination of earlier columns, whose coefficients include it.
      error: Relative error that remains.
      is_identifiable: True for each coefficient that exceeds run-to-run noise.
    """

    coefficients: Sequence[float]
    error: float
    is_identifiable: Sequence[bool]


def solve(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> Solution:
    """Solves for the least squares of errors relative to weights.

    Columns are scaled to one before: bytes are in millions, latencies in microseconds.

    Args:
      rows: Units of each coefficient in each run.
      values: Measured value of each run.
      weights: Value of each run that its error is divided by.
    """
    matrix = np.array(rows) / np.array(weights)[:, None]
    scales = np.maximum(np.abs(matrix).max(axis=0), np.finfo(float).tiny)
    matrix = matrix / scales
    kept = _independent(matrix)
    found, error = optimize.nnls(matrix[:, kept], np.array(values) / np.array(weights))
    # Standard error of each coefficient for runs that differ by RUNS_DIFFER.
    part = matrix[:, kept]
    spread = RUNS_DIFFER * np.sqrt(np.diag(np.linalg.inv(part.T @ part)))
    coefficients, is_identifiable = np.zeros(len(scales)), np.zeros(len(scales), bool)
    coefficients[kept] = found / scales[kept]
    is_identifiable[kept] = found > spread
    return Solution(
        coefficients=coefficients.tolist(),
        error=float(error),
        is_identifiable=is_identifiable.tolist(),
    )


def _independent(matrix: np.ndarray) -> list[int]:
    """Returns the columns that are no linear combination of earlier columns."""
    kept: list[int] = []
    for column in range(matrix.shape[1]):
        if np.linalg.matrix_rank(matrix[:, [*kept, column]]) > len(kept):
            kept.append(column)
    return kept
