"""Predictions, bandwidths at which they cross, and their parts of predict.json."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scipy import optimize

from trainers.experiments.predict.experiments import name_with
from trainers.experiments.predict.fitting import FittedArm
from trainers.experiments.predict.performance_model import Parts

# Of the points of `python -m benchmarks.growth` with shorter predictions, most of which
# are software, seven of twelve were off by more than 25 % in two series; of the 88
# others 16.
SHORT_STEP_SECONDS = 10e-3
# The slowest network that predictions are made for, and one on which a byte costs a
# hundredth of its time in processors.
BOUNDS_GBIT = (0.1, 1000.0)

# Names in predict.json of the costs that a model has.
_FIELDS = {
    "update": "milliseconds_per_update",
    "message": "microseconds_per_message",
    "byte": "nanoseconds_per_byte",
    "link_byte": "nanoseconds_per_byte_of_links",
    "wire": "wire_factor",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The predicted step of one arm on a number of replicas.

    Attributes:
      arm: Arm that is predicted.
      num_replicas: Number of replicas, each on a machine like this one or on a device
        of it.
      bandwidth_gbit: Bandwidth of the network, in gigabits per second.
      not_predicted: Reason why there is no prediction; None if there is one.
      parts: Parts of the step time; None without a prediction.
      efficiency: Speed as a fraction of the most that as many machines could do; None
        without a prediction.
    """

    arm: FittedArm
    num_replicas: int
    bandwidth_gbit: float
    not_predicted: str | None = None
    parts: Parts | None = None
    efficiency: float | None = None


def content_of_an_arm(arm: FittedArm) -> dict[str, Any]:
    """Returns the content of predict.json about one arm."""
    model, costs = arm.model, arm.model.costs
    return {
        "name": arm.name,
        "exchange": dataclasses.asdict(model.exchange),
        "busy_cores_per_replica": model.crowding.busy_cores,
        "contention": model.crowding.contention,
        "milliseconds_per_update": 1e3 * costs.update,
        "microseconds_per_message": 1e6 * costs.message,
        "nanoseconds_per_byte": 1e9 * costs.byte,
        "nanoseconds_per_byte_of_links": 1e9 * costs.link_byte
        if model.has_links
        else None,
        "wire_factor": costs.wire if model.has_links else None,
        "not_identifiable": [_FIELDS[cost] for cost in model.not_identifiable],
        "measured": [
            {**dataclasses.asdict(m), "leave_one_out_error": error}
            for m, error in zip(arm.measurements, arm.errors, strict=True)
        ],
        "median_error": arm.median_error,
        "largest_error": arm.largest_error,
        "ballast_error": arm.ballast_error,
        "largest_difference_of_equal_runs": arm.spread,
    }


def content_of_a_prediction(prediction: Prediction) -> dict[str, Any]:
    """Returns the content of predict.json about one prediction."""
    parts = prediction.parts
    return {
        "strategy": prediction.arm.name,
        "num_replicas": prediction.num_replicas,
        "bandwidth_gbit": prediction.bandwidth_gbit,
        "not_predicted": prediction.not_predicted,
        "step_milliseconds": None if parts is None else 1e3 * parts.total,
        "efficiency": prediction.efficiency,
        "milliseconds": None
        if parts is None
        else {k: 1e3 * v for k, v in dataclasses.asdict(parts).items()},
    }


def note_on_short_steps(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yields a note that names the arms with steps too short to rely on, if any."""
    short = {
        p.arm.name
        for p in predictions
        if p.parts is not None and p.parts.total < SHORT_STEP_SECONDS
    }
    if short:
        yield (
            f"note      {', '.join(sorted(short))}: steps below "
            f"{1e3 * SHORT_STEP_SECONDS:g} ms are mostly messages and software, and "
            "such predictions were far off (docs/prediction.md)"
        )


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
