"""Step time as a function of replicas, batch and network, fitted to short runs.

  step time = compute(examples of a replica) + software
              + latency x messages + bytes / bandwidth

The terms of the network are those of Hockney, "The communication challenge for MPP:
Intel Paragon and Meiko CS-2", 1994, added up over messages that wait for each other.
Replicas on one machine share its cores, which is a factor of all of it where a run was
measured, and one where a replica has a machine of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import optimize

from trainers.prediction.traffic import Exchange

# Finer ones change no prediction by as much as runs differ.
_STEPS_OF_BUSY_CORES = 25
# Three workers took 3.2 times as long as two on two cores: they wait for their turn,
# and then for each other.
_CONTENTIONS = np.linspace(1.0, 3.0, 21)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The step time of a short run.

    Attributes:
      num_replicas: that took part.
      examples: that each computed for an update.
      step_seconds: between two updates, the median.
    """

    num_replicas: int
    examples: float
    step_seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """What one replica with a machine to itself takes for an update."""

    seconds: float
    seconds_per_example: float

    @classmethod
    def fitted(cls, measurements: Sequence[Measurement]) -> Compute:
        """To runs on one device, with relative errors of equal weight."""
        rows = [(1.0, m.examples) for m in measurements]
        seconds = [m.step_seconds for m in measurements]
        fixed, per_example = _fit(rows, seconds, weights=seconds)[0]
        return cls(seconds=fixed, seconds_per_example=per_example)

    def of(self, examples: float) -> float:
        """Seconds for so many examples."""
        return self.seconds + self.seconds_per_example * examples


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crowding:
    """How replicas that share cores hold each other up.

    Attributes:
      cores: that they share.
      busy_cores: that each keeps busy while it is alone.
      contention: by how much more they are slowed down than their number explains,
        once they have to take turns.
    """

    cores: int
    busy_cores: float
    contention: float = 1.0

    def factor(self, num_replicas: int) -> float:
        """Of everything that a step takes."""
        wanted = num_replicas * self.busy_cores / self.cores
        return 1.0 if wanted <= 1 else self.contention * wanted


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What a message and a byte take at least."""

    seconds_per_message: float
    seconds_per_byte: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Of a predicted step, in seconds; they add up to it."""

    compute: float
    software: float
    latency: float
    transfer: float

    @property
    def total(self) -> float:
        return self.compute + self.software + self.latency + self.transfer


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The step time of one strategy.

    Attributes:
      compute: of a replica.
      exchange: how replicas exchange gradients.
      crowding: where the runs were measured.
      seconds_per_update: that the strategy adds to each, whatever is sent.
      local: what messages and bytes took where the runs were measured.
    """

    compute: Compute
    exchange: Exchange
    crowding: Crowding
    seconds_per_update: float
    local: Network

    @classmethod
    def fitted(
        cls,
        measurements: Sequence[Measurement],
        compute: Compute,
        exchange: Exchange,
        cores: int,
    ) -> Model:
        """To runs of one strategy on a machine, with errors of equal relative weight.

        Args:
          measurements: with several numbers of replicas.
          compute: fitted to one device of the same machine.
          exchange: of the strategy.
          cores: that all replicas shared.
        """
        cycles = [_cycle(m, exchange) for m in measurements]
        traffic = [exchange.traffic(m.num_replicas) for m in measurements]
        rows = [(1.0, t.messages_in_a_row, t.bytes_in_a_row) for t in traffic]
        found = []
        for crowding in _crowdings(cores):
            factors = [crowding.factor(m.num_replicas) for m in measurements]
            # What is left of each step when its share of a crowd is taken out.
            alone = [cycle / f for cycle, f in zip(cycles, factors, strict=True)]
            rest = [
                seconds - compute.of(m.examples)
                for seconds, m in zip(alone, measurements, strict=True)
            ]
            fitted, error = _fit(rows, rest, weights=alone)
            found.append((error, crowding, fitted))
        _, crowding, (update, message, byte) = min(found, key=lambda f: f[0])
        return cls(
            compute=compute,
            exchange=exchange,
            crowding=crowding,
            seconds_per_update=update,
            local=Network(seconds_per_message=message, seconds_per_byte=byte),
        )

    def measured_here(self, num_replicas: int, examples: float) -> float:
        """Seconds a step where all replicas share the cores of one machine."""
        traffic = self.exchange.traffic(num_replicas)
        cycle = self.crowding.factor(num_replicas) * (
            self.compute.of(examples)
            + self.seconds_per_update
            + self.local.seconds_per_message * traffic.messages_in_a_row
            + self.local.seconds_per_byte * traffic.bytes_in_a_row
        )
        return cycle if self.exchange.is_synchronous else cycle / num_replicas

    def elsewhere(self, num_replicas: int, examples: float, network: Network) -> Parts:
        """A step where each replica has a machine like this one to itself.

        A network cannot make software faster than it was here.
        """
        traffic = self.exchange.traffic(num_replicas)
        message = max(network.seconds_per_message, self.local.seconds_per_message)
        byte = max(network.seconds_per_byte, self.local.seconds_per_byte)
        together = 1 if self.exchange.is_synchronous else num_replicas
        parts = Parts(
            compute=self.compute.of(examples) / together,
            software=self.seconds_per_update / together,
            latency=message * traffic.messages_in_a_row / together,
            transfer=byte * traffic.bytes_in_a_row / together,
        )
        if self.exchange.is_synchronous or num_replicas == 1:
            return parts
        least = byte * self.exchange.bytes_that_all_share()
        return dataclasses.replace(
            parts, transfer=parts.transfer + max(0.0, least - parts.total)
        )


def leave_one_out(
    measurements: Sequence[Measurement],
    compute: Compute,
    exchange: Exchange,
    cores: int,
) -> list[float]:
    """Relative errors of each run's step time, predicted from all the other runs."""
    errors = []
    for left_out in measurements:
        others = [m for m in measurements if m is not left_out]
        model = Model.fitted(others, compute, exchange, cores)
        predicted = model.measured_here(left_out.num_replicas, left_out.examples)
        errors.append(predicted / left_out.step_seconds - 1)
    return errors


def _crowdings(cores: int) -> Iterator[Crowding]:
    for busy_cores in np.linspace(0.0, cores, _STEPS_OF_BUSY_CORES):
        for contention in _CONTENTIONS:
            yield Crowding(
                cores=cores, busy_cores=float(busy_cores), contention=float(contention)
            )


def _cycle(measurement: Measurement, exchange: Exchange) -> float:
    """What one replica takes for an update, of which the others may be in others."""
    together = 1 if exchange.is_synchronous else measurement.num_replicas
    return measurement.step_seconds * together


def _fit(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> tuple[list[float], float]:
    """Coefficients that are not negative, and the error that they leave.

    Columns are scaled to one before: bytes are in millions, latencies in microseconds.
    """
    matrix = np.array(rows) / np.array(weights)[:, None]
    scales = np.maximum(np.abs(matrix).max(axis=0), np.finfo(float).tiny)
    target = np.array(values) / np.array(weights)
    fitted, error = optimize.nnls(matrix / scales, target)
    return [float(c) for c in fitted / scales], float(error)
