"""Successive halving: the better half of several values is tried in longer runs."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from trainers.experiments.tune.tuning import Rung

# Losses of two runs count as equal if they differ by less than this share. Losses
# of the same asynchronous training with the same seed differed by 13 % in the median,
# and by more than this in 3 of 20 cases (curves.json of the tests).
_NOISE = 0.5


@dataclasses.dataclass(slots=True)
class Trial:
    """One value, and how it did.

    Attributes:
      value: Value of the setting.
      losses: Final loss of its run by the length of the run, in updates; None where the
        run did not complete.
    """

    value: float
    losses: dict[int, float | None] = dataclasses.field(default_factory=dict)


# From a value and a number of steps to the final loss; None without one.
Measure = Callable[[float, int], float | None]


def halve(
    values: Sequence[float],
    rungs: Sequence[Rung],
    measure: Measure,
    distance: Callable[[float], float],
) -> tuple[list[Trial], Trial | None]:
    """Tries all values in short runs, and the better half in runs of twice the length.

    Args:
      values: Values to try.
      rungs: Number of values and length of their runs, the shortest runs first.
      measure: Function that runs a value.
      distance: Distance of a value from the one before the search; the nearer of two
        with the same loss is better.

    Returns:
      All trials, and the best; None if no run of a rung completed.
    """
    trials = [Trial(value) for value in values]
    left = trials
    for rung in rungs:
        # The best of the rung before, in their order.
        left = left[: rung.num_values]
        ranked = []
        for trial in left:
            loss = measure(trial.value, rung.steps)
            trial.losses[rung.steps] = loss
            if loss is not None:
                ranked.append((loss, distance(trial.value), trial))
        # Sorted by loss and distance alone: trials have no order.
        left = [trial for *_, trial in sorted(ranked, key=lambda each: each[:2])]
    return trials, left[0] if left else None


def with_given(
    trials: Sequence[Trial],
    best: Trial | None,
    given: float,
    steps: int,
    loss: float | None,
) -> tuple[list[Trial], Trial | None]:
    """Lets the value before the search compete with the best of the longest runs.

    It need not be one of the values, and short runs may have passed over it.

    Args:
      trials: All trials.
      best: Best trial; None if no run of a rung completed.
      given: Value before the search.
      steps: Length of the longest runs, in updates.
      loss: Final loss of the given value in such a run; None if that did not complete.

    Returns:
      All trials, by their values, and the best. Of equal ones it is the given value.
    """
    if loss is None:
        return [*trials], best
    own = next((trial for trial in trials if trial.value == given), Trial(given))
    own.losses[steps] = loss
    others = [trial for trial in trials if trial is not own]
    rival = math.inf if best is None else best.losses[steps]
    is_best = rival is None or loss <= rival
    return sorted([*others, own], key=lambda t: t.value), own if is_best else best


def value_for_all(arms: Sequence[Sequence[Trial]], steps: int) -> float | None:
    """Returns a value that is as good as the best one for every arm; None without any.

    Noise alone may lead equal arms to different values, which a comparison of many
    seeds would then call different. So arms have different values only if the search
    tells these apart. `steps` is the length of the longest runs.
    """
    by_arm = [
        {t.value: loss for t in trials if (loss := t.losses.get(steps)) is not None}
        for trials in arms
    ]
    # Values that each arm could have.
    good = []
    for losses in by_arm:
        least = min(losses.values())
        good.append({v for v, x in losses.items() if x - least <= _NOISE * abs(least)})
    return min(
        sorted(set.intersection(*good)),
        key=lambda value: math.fsum(losses[value] for losses in by_arm),
        default=None,
    )
