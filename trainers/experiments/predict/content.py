"""Predictions, and the parts of predict.json about arms and predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from trainers.experiments.predict.fitting import FittedArm
from trainers.experiments.predict.performance_model import Parts

# Of the points of `python -m benchmarks.growth` with shorter predictions, most of which
# are software, four of seven were off by more than 25 %; of the 43 others two.
SHORT_STEP_SECONDS = 10e-3

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
