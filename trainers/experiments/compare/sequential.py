"""Levels of tests that are repeated after every seed.

A comparison that looks after each of 3 to 10 seeds, and stops at p < 0.05, calls equal
arms different in 17 of 100 cases. One smaller level at every look keeps 5 (Pocock,
Group sequential methods in the design and analysis of clinical trials, 1977); for
Student's t with so few seeds it is found by simulation.

Seeds may be added to a comparison that has ended undecided. A part of the error rate is
kept for the looks at them, so that it holds for all looks together.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

# Part of the error rate for the looks of the first plan. Of what is left, each range of
# added seeds gets half. The 3 to 10 seeds of a plan decide a difference of 3 standard
# deviations in 4.20 seeds on average; with all of the error rate it would be 4.12.
_PLANNED_PART = 0.9
# The 5 % of paths that are beyond a level are 25,000, so that the error rate of the
# level is known to a hundredth of itself.
_NUM_PATHS = 500_000


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A look at the seeds so far, one of a range of looks.

    Attributes:
      first: Number of seeds at the first look of the range, at least 2.
      last: Number of seeds at its last look.
      part: Part of the error rate that the range has.
    """

    first: int
    last: int
    part: float = 1.0

    def adjusted_p_value(self, p_value: float, sides: int) -> float:
        """Returns a p-value that is valid however many looks there are.

        It is below an error rate at any look with at most that probability, if the
        differences of seeds are normal with mean zero. So it can be compared, and
        corrected for several tests, as the p-value of a single test.

        Args:
          p_value: P-value by Student's t of the seeds so far.
          sides: 2 for tests against zero, 1 for tests of equivalence.
        """
        # Bonferroni's bound. It is exact for one look, and the smaller one for p-values
        # that too few simulated paths reach.
        chance = (self.last - self.first + 1) * p_value
        if self.first < self.last:
            smallest = _smallest_p_values(self.first, self.last, sides)
            reached = np.searchsorted(smallest, p_value, side="right")
            chance = min(chance, (reached + 1) / (len(smallest) + 1))
        return float(min(chance / self.part, 1.0))

    def level(self, error_rate: float, sides: int) -> float:
        """Returns the p-value by Student's t whose adjusted value is an error rate.

        One minus it is the confidence of an interval that contains the true mean at
        every look with probability one minus the error rate.

        Args:
          error_rate: Probability of a wrong decision at any look.
          sides: 2 for tests against zero, 1 for tests of equivalence.
        """
        if self.first == self.last:
            return self.part * error_rate
        smallest = _smallest_p_values(self.first, self.last, sides)
        return float(np.quantile(smallest, self.part * error_rate, method="lower"))


def look_at(num_seeds: int, ranges: Sequence[tuple[int, int]]) -> Look:
    """Returns the look at a number of seeds.

    Args:
      num_seeds: Number of seeds so far.
      ranges: First and last number of seeds at which the plan looks, then the same for
        each range of added seeds, in ascending order.

    Raises:
      ValueError: There is no such look.
    """
    part, left = _PLANNED_PART, 1 - _PLANNED_PART
    for first, last in ranges:
        if first <= num_seeds <= last:
            return Look(first, last, part)
        part = left = left / 2
    raise ValueError(f"no look at {num_seeds} seeds: the looks are {list(ranges)}")


@functools.cache
def _smallest_p_values(first_look: int, last_look: int, sides: int) -> np.ndarray:
    """Returns the sorted smallest p-values over all looks at simulated comparisons."""
    # Imported late: SciPy takes a second, which would delay an error message.
    from scipy import special

    # The same p-values for the same looks, whenever they are computed.
    random = np.random.default_rng(0)
    smallest = np.ones(_NUM_PATHS)
    sums, squares = np.zeros(_NUM_PATHS), np.zeros(_NUM_PATHS)
    for count in range(1, last_look + 1):
        values = random.standard_normal(_NUM_PATHS)
        sums += values
        squares += values * values
        if count < first_look:
            continue
        means = sums / count
        variances = (squares - count * means * means) / (count - 1)
        errors = np.sqrt(variances / count)
        t = np.abs(means / errors) if sides == 2 else means / errors
        # The survival function of Student's t.
        np.minimum(smallest, sides * special.stdtr(count - 1, -t), out=smallest)
    return np.sort(smallest)
