"""The report of a prediction: lines of text, and predict.json."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from strategies.common.text import table_lines
from trainers.config.config import Config
from trainers.experiments.predict.experiments import REFERENCE
from trainers.experiments.predict.fitting import Fitted, FittedArm
from trainers.experiments.predict.performance_model import Network, Parts

SCHEMA_VERSION = 1

# Names in predict.json of the costs that a model has.
_FIELDS = {
    "update": "milliseconds_per_update",
    "message": "microseconds_per_message",
    "byte": "nanoseconds_per_byte",
}
# Notes on costs that the runs cannot identify, for the costs that a network has too.
_COSTS = {
    "message": (
        "these runs cannot tell what a message costs here from what every update does, "
        "so that most of it counts as software"
    ),
    "byte": "these runs cannot tell what a byte costs here, which is next to nothing",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The predicted step of one arm on a number of replicas.

    Attributes:
      arm: Arm that is predicted.
      num_replicas: Number of replicas, each on a machine like this one or on a device
        of it.
      parts: Parts of the step time; None if the global batch has fewer examples than
        replicas.
      efficiency: Speed as a fraction of the most that as many machines could do; None
        without parts.
    """

    arm: FittedArm
    num_replicas: int
    parts: Parts | None
    efficiency: float | None


class Report:
    """Predictions of every arm for every requested number of replicas."""

    def __init__(self, config: Config, fitted: Fitted):
        """Computes the predictions; prints and writes nothing."""
        self._config = config
        self._fitted = fitted
        self._batch = config.length.global_batch_size
        self._alone_seconds = fitted.compute.of(self._batch)
        network = Network(
            seconds_per_message=config.prediction.seconds_per_message,
            seconds_per_byte=config.prediction.seconds_per_byte,
        )
        self._predictions = [
            self._predict(arm, count, network)
            for count in config.prediction.replica_counts
            for arm in fitted.arms
        ]

    def lines(self) -> Iterator[str]:
        """Yields the lines to print: model errors, a table, and the best arms."""
        compute = self._fitted.compute
        yield (
            f"{REFERENCE} {1e3 * compute.seconds:.3g} ms a step and "
            f"{1e3 * compute.seconds_per_example:.3g} ms an example"
        )
        for arm in self._fitted.arms:
            yield (
                f"error     {arm.name}: {100 * arm.median_error:.0f} % in the middle "
                f"of {len(arm.errors)} runs, each predicted from the others; at most "
                f"{100 * arm.largest_error:.0f} %, and with more bytes to send "
                f"{100 * arm.ballast_error:.0f} %"
            )
        yield from self._table()
        for count in self._config.prediction.replica_counts:
            yield f"best      {count} replicas: {self._best(count)}"
        yield from self._notes()

    def content(self, command: str) -> dict[str, Any]:
        """Returns the content of predict.json.

        Args:
          command: Command that repeats the prediction.
        """
        config, fitted = self._config, self._fitted
        return {
            "schema_version": SCHEMA_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command,
            "model": config.model.model,
            "dataset": config.data.dataset,
            "global_batch_size": self._batch,
            # Seconds per byte to gigabits per second.
            "bandwidth_gbit": 8e-9 / config.prediction.seconds_per_byte,
            "latency_microseconds": 1e6 * config.prediction.seconds_per_message,
            "hardware": fitted.hardware,
            "one_device": {
                "milliseconds_per_step": 1e3 * fitted.compute.seconds,
                "milliseconds_per_example": 1e3 * fitted.compute.seconds_per_example,
                "milliseconds_of_ballast": 1e3 * fitted.compute.seconds_of_ballast,
                "measured": [dataclasses.asdict(m) for m in fitted.reference],
            },
            "strategies": [_of_an_arm(arm) for arm in fitted.arms],
            "predictions": [_of_a_prediction(p) for p in self._predictions],
        }

    def _predict(self, arm: FittedArm, count: int, network: Network) -> Prediction:
        # An asynchronous replica computes a whole global batch for each of its updates.
        shares = count if arm.model.exchange.is_synchronous else 1
        # A replica without an example cannot take part.
        if shares > self._batch:
            return Prediction(arm=arm, num_replicas=count, parts=None, efficiency=None)
        parts = arm.model.elsewhere(count, self._batch / shares, network)
        return Prediction(
            arm=arm,
            num_replicas=count,
            parts=parts,
            # 1 if `count` replicas are `count` times as fast as one device.
            efficiency=self._alone_seconds / (count * parts.total),
        )

    def _table(self) -> list[str]:
        """Returns a row for each number of replicas and arm."""
        rows = [
            ["predicted", "replicas", "step ms", "efficiency", "compute", "network"],
            [REFERENCE, "1", _milliseconds(self._alone_seconds), "100 %", "", ""],
        ]
        for each in self._predictions:
            cells = ["-"] * 4
            if each.parts is not None and each.efficiency is not None:
                parts = each.parts
                cells = [
                    _milliseconds(parts.total),
                    f"{100 * each.efficiency:.3g} %",
                    _milliseconds(parts.compute),
                    _milliseconds(parts.latency + parts.transfer),
                ]
            rows.append([each.arm.name, str(each.num_replicas), *cells])
        return table_lines(rows)

    def _best(self, count: int) -> str:
        ranked = sorted(
            (each.parts.total, each.arm.name)
            for each in self._predictions
            if each.parts is not None and each.num_replicas == count
        )
        if not ranked:
            return (
                f"none: they need --global_batch_size={count} or more, an example for "
                f"each; it is {self._batch}"
            )
        # Tuples sort by their first element: the shortest step time is first.
        seconds, name = ranked[0]
        words = f"{name}, {_milliseconds(seconds)} ms a step"
        alone = self._alone_seconds
        if seconds >= alone:
            return f"{words}; slower than one_device, {_milliseconds(alone)} ms"
        return f"{words}, {alone / seconds:.3g} times as fast as one_device"

    def _notes(self) -> Iterator[str]:
        """Yields the limits of the predictions."""
        arms = self._fitted.arms
        inside = [arm.name for arm in arms if not arm.is_multi_process]
        for cost, words in _COSTS.items():
            unknown = [arm.name for arm in arms if cost in arm.model.not_identifiable]
            if unknown:
                yield f"note      {', '.join(unknown)}: {words}"
        if inside:
            yield (
                f"note      {', '.join(inside)}: one process, so that its replicas "
                "must be in one machine, and the network is that between its devices"
            )
        stale = [arm.name for arm in arms if not arm.model.exchange.is_synchronous]
        if stale:
            yield (
                f"note      {', '.join(stale)}: updates are of stale gradients, and "
                "may have to be more for the same loss; --mode=compare tells"
            )


def _of_an_arm(arm: FittedArm) -> dict[str, Any]:
    model = arm.model
    return {
        "name": arm.name,
        "exchange": dataclasses.asdict(model.exchange),
        "busy_cores_per_replica": model.crowding.busy_cores,
        "contention": model.crowding.contention,
        "milliseconds_per_update": 1e3 * model.seconds_per_update,
        "microseconds_per_message": 1e6 * model.local.seconds_per_message,
        "nanoseconds_per_byte": 1e9 * model.local.seconds_per_byte,
        "not_identifiable": [_FIELDS[cost] for cost in model.not_identifiable],
        "measured": [
            {**dataclasses.asdict(m), "leave_one_out_error": error}
            for m, error in zip(arm.measurements, arm.errors, strict=True)
        ],
        "median_error": arm.median_error,
        "largest_error": arm.largest_error,
        "ballast_error": arm.ballast_error,
    }


def _of_a_prediction(prediction: Prediction) -> dict[str, Any]:
    parts = prediction.parts
    return {
        "strategy": prediction.arm.name,
        "num_replicas": prediction.num_replicas,
        "step_milliseconds": None if parts is None else 1e3 * parts.total,
        "efficiency": prediction.efficiency,
        "milliseconds": None
        if parts is None
        else {k: 1e3 * v for k, v in dataclasses.asdict(parts).items()},
    }


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
