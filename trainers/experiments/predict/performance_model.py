"""Step time as a function of replicas, batch and network, fitted to short runs.

  step time = compute(examples of a replica) + software
              + latency x messages + bytes / bandwidth

The terms of the network are those of Hockney, "The communication challenge for MPP:
Intel Paragon and Meiko CS-2", 1994, added up over messages that wait for each other.
Replicas on one machine share its cores, which is a factor of all of it where a run was
measured, and one where a replica has a machine of its own.

Some runs have padding weights, which compute nothing, so that they send more bytes in as
many messages. They determine the cost of a byte: without them, every run with as many
replicas sends as many bytes, which could be a part of software or messages. The compute
time of padding weights, their part of the update, is known from one device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from trainers.experiments.predict.communication_model import Exchange, Traffic
from trainers.experiments.predict.least_squares import solve

# Finer ones change no prediction by as much as runs differ.
_STEPS_OF_BUSY_CORES = 25
# Three workers took 3.2 times as long as two on two cores: they wait for their turn,
# and then for each other.
_CONTENTIONS = np.linspace(1.0, 3.0, 21)
_COSTS = ("update", "message", "byte")


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
      not_told: of `update`, `message` and `byte` those whose cost is less than what
        short runs differ by, or is a part of those before it in every run.
    """

    compute: Compute
    exchange: Exchange
    crowding: Crowding
    seconds_per_update: float
    local: Network
    not_told: tuple[str, ...] = ()

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
        traffic = [_traffic(m, exchange) for m in measurements]
        rows = [(1.0, t.messages_in_a_row, t.bytes_in_a_row) for t in traffic]
        found = []
        for crowding in _crowdings(cores):
            factors = [crowding.factor(m.num_replicas) for m in measurements]
            # What is left of each step when its share of a crowd is taken out.
            alone = [cycle / f for cycle, f in zip(cycles, factors, strict=True)]
            rest = [
                seconds - compute.of(m.examples, m.has_ballast)
                for seconds, m in zip(alone, measurements, strict=True)
            ]
            found.append((solve(rows, rest, weights=alone), crowding))
        solution, crowding = min(found, key=lambda pair: pair[0].error)
        update, message, byte = solution.coefficients
        told = zip(_COSTS, solution.is_told, strict=True)
        return cls(
            compute=compute,
            exchange=exchange,
            crowding=crowding,
            seconds_per_update=update,
            local=Network(seconds_per_message=message, seconds_per_byte=byte),
            not_told=tuple(cost for cost, is_told in told if not is_told),
        )

    def measured_here(self, num_replicas: int, examples: float) -> float:
        """Seconds a step where all replicas share the cores of one machine."""
        traffic = self.exchange.traffic(num_replicas)
        return self._here(num_replicas, self.compute.of(examples), traffic)

    def of(self, run: Measurement) -> float:
        """The same of a run with its own size of gradients, whatever it took."""
        compute = self.compute.of(run.examples, run.has_ballast)
        return self._here(run.num_replicas, compute, _traffic(run, self.exchange))

    def _here(self, num_replicas: int, compute: float, traffic: Traffic) -> float:
        cycle = self.crowding.factor(num_replicas) * (
            compute
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
        errors.append(model.of(left_out) / left_out.step_seconds - 1)
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


def _traffic(run: Measurement, exchange: Exchange) -> Traffic:
    own = dataclasses.replace(exchange, gradient_bytes=run.gradient_bytes)
    return own.traffic(run.num_replicas)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The step time of a short run.

    Attributes:
      num_replicas: that took part.
      examples: that each computed for an update.
      step_seconds: between two updates, the median.
      gradient_bytes: of a replica, ballast included; 0 where there is but one.
      has_ballast: whether there were weights that compute nothing.
    """

    num_replicas: int
    examples: float
    step_seconds: float
    gradient_bytes: float
    has_ballast: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """What one replica with a machine to itself takes for an update.

    Attributes:
      seconds: whatever the examples.
      seconds_per_example: and for each of them.
      seconds_of_ballast: where there is any.
    """

    seconds: float
    seconds_per_example: float
    seconds_of_ballast: float = 0.0

    @classmethod
    def fitted(cls, measurements: Sequence[Measurement]) -> Compute:
        """To runs on one device, with relative errors of equal weight."""
        rows = [(1.0, m.examples, float(m.has_ballast)) for m in measurements]
        seconds = [m.step_seconds for m in measurements]
        fixed, per_example, ballast = solve(rows, seconds, weights=seconds).coefficients
        return cls(
            seconds=fixed, seconds_per_example=per_example, seconds_of_ballast=ballast
        )

    def of(self, examples: float, has_ballast: bool = False) -> float:
        """Seconds for so many examples."""
        ballast = self.seconds_of_ballast if has_ballast else 0.0
        return self.seconds + self.seconds_per_example * examples + ballast
