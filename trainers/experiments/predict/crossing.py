"""The bandwidth below which compressed gradients are faster than whole ones."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scipy import optimize

from trainers.experiments.predict.content import Prediction
from trainers.experiments.predict.experiments import name_with
from trainers.experiments.predict.fitting import FittedArm

# The slowest network that predictions are made for, and one on which a byte costs a
# hundredth of its time in processors.
BOUNDS_GBIT = (0.1, 1000.0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """The networks on which one arm is faster than another one.

    Attributes:
      arm: Name of the arm that sends less.
      whole: Name of the arm that it is compared with.
      num_replicas: Number of replicas of both.
      below_gbit: Bandwidth below which `arm` is faster, in gigabits per second; 0 if it
        is slower on all networks within the bounds, infinite if it is faster on all.
    """

    arm: str
    whole: str
    num_replicas: int
    below_gbit: float

    def in_words(self) -> str:
        """Returns when the arm is faster."""
        slowest, _ = BOUNDS_GBIT
        if self.below_gbit == 0:
            when = f"not faster from {slowest:g} Gbit/s up"
        elif math.isinf(self.below_gbit):
            when = "faster on every network"
        else:
            when = f"faster below {self.below_gbit:.2g} Gbit/s"
        return f"{self.num_replicas} replicas: {self.arm}, {when}"

    def content(self) -> dict[str, Any]:
        """Returns the content of predict.json about it."""
        is_faster = {0.0: "never", math.inf: "always"}.get(self.below_gbit, "below")
        return {
            "strategy": self.arm,
            "without": self.whole,
            "num_replicas": self.num_replicas,
            "is_faster": is_faster,
            "below_gbit": self.below_gbit if is_faster == "below" else None,
        }


def crossing_gbit(
    seconds: Callable[[float], float], whole_seconds: Callable[[float], float]
) -> float:
    """Returns the bandwidth below which one step is shorter than another one.

    Args:
      seconds: Function from a bandwidth in gigabits per second to the step time of the
        arm that sends less.
      whole_seconds: The same of the arm that sends more.

    Returns:
      Bandwidth in gigabits per second; 0 if the first is not shorter at the slowest
      network, infinite if it is shorter at the fastest.
    """

    def saved(exponent: float) -> float:
        return whole_seconds(10**exponent) - seconds(10**exponent)

    slowest, fastest = (math.log10(bound) for bound in BOUNDS_GBIT)
    if saved(slowest) <= 0:
        return 0.0
    if saved(fastest) > 0:
        return math.inf
    # The saving shrinks as the network gets faster, so there is one such bandwidth.
    return float(10 ** optimize.brentq(saved, slowest, fastest, xtol=1e-4))


def crossings(
    arms: Sequence[FittedArm],
    counts: Sequence[int],
    predict: Callable[[FittedArm, int, float], Prediction],
) -> Iterator[Crossing]:
    """Yields the crossing of each compressed arm, for each number of replicas.

    Counts without a prediction are left out. `predict` takes an arm, a number of
    replicas and a bandwidth in gigabits per second.
    """

    def seconds(arm: FittedArm, count: int, bandwidth_gbit: float) -> float:
        parts = predict(arm, count, bandwidth_gbit).parts
        return math.inf if parts is None else parts.total

    for arm in arms:
        if arm.compression is None:
            continue
        # An arm without compression is fitted beside each with it.
        (whole,) = (a for a in arms if name_with(arm.compression, a.name) == arm.name)
        for count in counts:
            if predict(arm, count, BOUNDS_GBIT[0]).parts is None:
                continue
            below = crossing_gbit(
                functools.partial(seconds, arm, count),
                functools.partial(seconds, whole, count),
            )
            yield Crossing(
                arm=arm.name, whole=whole.name, num_replicas=count, below_gbit=below
            )
