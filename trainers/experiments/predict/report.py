"""The report of a prediction: lines of text, and predict.json."""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

from strategies.common.text import table_lines
from trainers.config.config import Config
from trainers.experiments.predict.communication_model import Network
from trainers.experiments.predict.experiments import REFERENCE, most_predicted
from trainers.experiments.predict.fitting import Fitted, FittedArm
from trainers.experiments.predict.links import BANDWIDTHS_MBIT
from trainers.experiments.predict.predictions import (
    Prediction,
    content_of_a_prediction,
    content_of_an_arm,
    crossings,
    note_on_short_steps,
)

SCHEMA_VERSION = 3

# Notes on costs that the runs cannot identify, for the costs that a network has too.
_COSTS = {
    "message": (
        "these runs cannot tell what a message costs here from what every update does, "
        "so that most of it counts as software"
    ),
    "byte": "these runs cannot tell what a byte costs here from other costs",
    "wire": "these runs cannot tell the time on the wire, which is next to nothing",
}


class Report:
    """Predictions of every arm for every requested number of replicas."""

    def __init__(self, config: Config, fitted: Fitted):
        """Computes the predictions; prints and writes nothing."""
        self._config = config
        self._fitted = fitted
        self._batch = config.length.global_batch_size
        self._asked_gbit = config.prediction.gigabits_per_second
        self._runs = [m for arm in fitted.arms for m in arm.measurements]
        self._most_replicas = most_predicted(m.num_replicas for m in self._runs)
        counts = config.prediction.replica_counts
        rows = list(itertools.product(counts, fitted.arms))
        self._predictions = [self._predict(a, n, self._asked_gbit) for n, a in rows]
        # A row for each number of replicas and arm: at each measured bandwidth.
        self._at_emulated = [
            [self._predict(arm, count, rate / 1e3) for rate in BANDWIDTHS_MBIT]
            for count, arm in rows
            if arm.model.has_links
        ]
        self._crossings = list(crossings(fitted.arms, counts, self._predict))

    def lines(self) -> Iterator[str]:
        """Yields the lines to print: model errors, a table, and the best arms."""
        compute = self._fitted.compute
        yield (
            f"{REFERENCE} {1e3 * compute.seconds:.3g} ms a step and "
            f"{1e3 * compute.seconds_per_example:.3g} ms an example"
        )
        for arm in self._fitted.arms:
            words = (
                f"error     {arm.name}: median {100 * arm.median_error:.0f} % of "
                f"{len(arm.errors)} runs, each predicted from the others; at most "
                f"{100 * arm.largest_error:.0f} %"
            )
            if arm.ballast_error is not None:
                words += (
                    f", and with more bytes to send {100 * arm.ballast_error:.0f} %"
                )
            if arm.spread is not None:
                words += f"; equal runs differ by up to {100 * arm.spread:.0f} %"
            yield words
        yield self._bounds_in_words()
        yield from self._table()
        yield from self._table_of_emulated()
        for count in self._config.prediction.replica_counts:
            yield f"best      {count} replicas: {self._best(count)}"
        for crossing in self._crossings:
            yield f"compress  {crossing.in_words()}"
        yield from self._notes()

    def content(self, command: str) -> dict[str, Any]:
        """Returns the content of predict.json."""
        config, fitted = self._config, self._fitted
        return {
            "schema_version": SCHEMA_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command,
            "model": config.model.name,
            "dataset": config.data_name,
            "global_batch_size": self._batch,
            "bandwidth_gbit": self._asked_gbit,
            "latency_microseconds": 1e6 * config.prediction.seconds_per_message,
            "hardware": fitted.hardware,
            "one_device": {
                "milliseconds_per_step": 1e3 * fitted.compute.seconds,
                "milliseconds_per_example": 1e3 * fitted.compute.seconds_per_example,
                "milliseconds_of_ballast": 1e3 * fitted.compute.seconds_of_ballast,
                "milliseconds_of_small": 1e3 * fitted.compute.seconds_of_small,
                "milliseconds_as_asked": 1e3 * fitted.alone_seconds,
                "measured": [dataclasses.asdict(m) for m in fitted.reference],
            },
            "bounds": self._bounds(),
            "strategies": [content_of_an_arm(arm) for arm in fitted.arms],
            "predictions": [
                content_of_a_prediction(p)
                for p in (*self._predictions, *itertools.chain(*self._at_emulated))
            ],
            "crossings": [crossing.content() for crossing in self._crossings],
        }

    def _predict(self, arm: FittedArm, count: int, bandwidth: float) -> Prediction:
        prediction = Prediction(arm=arm, num_replicas=count, bandwidth_gbit=bandwidth)
        shares = arm.model.exchange.shares(count)
        reason = self._obstacle(count, shares)
        if reason is not None:
            return dataclasses.replace(prediction, not_predicted=reason)
        network = Network(
            seconds_per_message=self._config.prediction.seconds_per_message,
            seconds_per_byte=8e-9 / bandwidth,
        )
        parts = arm.model.elsewhere(count, self._batch / shares, network)
        return dataclasses.replace(
            prediction,
            parts=parts,
            # 1 if `count` replicas are `count` times as fast as one device.
            efficiency=self._fitted.alone_seconds / (count * parts.total),
        )

    def _obstacle(self, count: int, shares: int) -> str | None:
        if count > self._most_replicas:
            return f"predictions are shown to hold up to {self._most_replicas} replicas"
        # A micro-batch without an example cannot be computed.
        least = shares * self._config.strategy.gradient_accumulation_steps
        if least > self._batch:
            return (
                f"they need --global_batch_size={least} or more, an example for each; "
                f"it is {self._batch}"
            )
        return None

    def _bounds(self) -> dict[str, Any]:
        """Returns the bounds of the measurements and of the predictions."""
        sizes = [m.gradient_bytes for m in self._runs]
        counts = [m.num_replicas for m in self._runs]
        return {
            "measured_replicas": [min(counts), max(counts)],
            "most_replicas": self._most_replicas,
            "measured_gradient_bytes": [min(sizes), max(sizes)],
            "measured_bandwidths_mbit": sorted(
                {m.bandwidth_mbit for m in self._runs if m.bandwidth_mbit is not None}
            ),
        }

    def _bounds_in_words(self) -> str:
        bounds = self._bounds()
        first, last = bounds["measured_replicas"]
        least, most = (size / 1e6 for size in bounds["measured_gradient_bytes"])
        rates = [f"{rate:g}" for rate in bounds["measured_bandwidths_mbit"]]
        networks = f"{' and '.join(rates)} Mbit/s and loopback" if rates else "loopback"
        return (
            f"bounds    measured: {first} to {last} replicas, {least:.2g} to "
            f"{most:.2g} MB of gradients, {networks}; predicted: up to "
            f"{self._most_replicas} replicas"
        )

    def _table(self) -> list[str]:
        """Returns a row for each number of replicas and arm."""
        rows = [
            ["predicted", "replicas", "step ms", "efficiency", "compute", "network"],
            [
                REFERENCE,
                "1",
                _milliseconds(self._fitted.alone_seconds),
                "100 %",
                "",
                "",
            ],
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
            rows.append([each.arm.label, str(each.num_replicas), *cells])
        return table_lines(rows)

    def _table_of_emulated(self) -> list[str]:
        """Returns a row for each number of replicas and arm with measured links."""
        headings = [f"ms at {rate:g} Mbit/s" for rate in BANDWIDTHS_MBIT]
        rows = [["predicted", "replicas", *headings]]
        for row in self._at_emulated:
            cells = [
                "-" if p.parts is None else _milliseconds(p.parts.total) for p in row
            ]
            rows.append([row[0].arm.label, str(row[0].num_replicas), *cells])
        return table_lines(rows) if rows[1:] else []

    def _best(self, count: int) -> str:
        of_count = [each for each in self._predictions if each.num_replicas == count]
        ranked = sorted(
            (each.parts.total, each.arm.name)
            for each in of_count
            if each.parts is not None
        )
        if not ranked:
            return f"none: {of_count[0].not_predicted}"
        # Tuples sort by their first element: the shortest step time is first.
        seconds, name = ranked[0]
        words = f"{name}, {_milliseconds(seconds)} ms a step"
        alone = self._fitted.alone_seconds
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
        at_emulated = itertools.chain(*self._at_emulated)
        yield from note_on_short_steps([*self._predictions, *at_emulated])
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


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
