"""Step time as a function of replicas, batch and network.

  step time = compute(examples of a replica) + software
              + latency x messages + bytes / bandwidth

The model is fitted to short runs. The terms of the network are those in Hockney, "The
communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994, added up over
messages that wait for each other. Replicas on one machine share its cores. Contention
multiplies the whole step time where a run was measured; the factor is one where each
replica has a machine.

Some runs have padding weights, which compute nothing, so that they send more bytes in
as many messages. They determine the cost of a byte: without them, all runs with the
same number of replicas send the same number of bytes, and the fit could not separate
bytes from software or messages. One device measures the compute time of padding
weights, their part of the update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from trainers.experiments.predict.communication_model import Exchange, Traffic
from trainers.experiments.predict.least_squares import solve

# A finer grid changes no prediction by as much as runs differ.
_STEPS_OF_BUSY_CORES = 25
# On two cores three workers took 3.2 times as long as two: they wait for a core, and
# then for each other.
_CONTENTIONS = np.linspace(1.0, 3.0, 21)
_COSTS = ("update", "message", "byte")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuContention:
    """CPU contention of replicas that share cores.

    Attributes:
      cores: Number of cores that the replicas share.
      busy_cores: Number of cores that each replica keeps busy when alone.
      contention: Additional factor once replicas wait for cores, beyond the factor that
        their number explains.
    """

    cores: int
    busy_cores: float
    contention: float = 1.0

    def factor(self, num_replicas: int) -> float:
        """Returns the factor of the whole step time."""
        # Cores that all replicas need, relative to the cores they share.
        wanted = num_replicas * self.busy_cores / self.cores
        return 1.0 if wanted <= 1 else self.contention * wanted


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Minimum time of a message and of a byte, in seconds."""

    seconds_per_message: float
    seconds_per_byte: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Parts of a predicted step in seconds, which add up to its time."""

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
      compute: Compute time of a replica.
      exchange: Exchange of gradients between replicas.
      crowding: CPU contention where the runs were measured.
      seconds_per_update: Seconds that the strategy adds to each update, independent of
        the bytes it sends.
      local: Time of messages and bytes where the runs were measured.
      not_identifiable: Costs among `update`, `message` and `byte` that the runs do not
        identify. Such a cost is below run-to-run noise, or is part of the costs before
        it in every run.
    """

    compute: Compute
    exchange: Exchange
    crowding: CpuContention
    seconds_per_update: float
    local: Network
    not_identifiable: tuple[str, ...] = ()

    @classmethod
    def fitted(
        cls,
        measurements: Sequence[Measurement],
        compute: Compute,
        exchange: Exchange,
        cores: int,
    ) -> Model:
        """Fits a model to runs of one strategy, by relative errors of equal weight.

        Args:
          measurements: Runs with several numbers of replicas on one machine.
          compute: Compute time, fitted to one device of the same machine.
          exchange: Exchange of the strategy.
          cores: Number of cores that all replicas shared.
        """
        cycles = [_cycle(m, exchange) for m in measurements]
        traffic = [_traffic(m, exchange) for m in measurements]
        # One column for each of `_COSTS`.
        rows = [(1.0, t.messages_in_a_row, t.bytes_in_a_row) for t in traffic]
        found = []
        # The model is linear in the three costs but not in contention: contention is
        # searched on a grid, with a least squares fit at each point.
        for crowding in _crowdings(cores):
            factors = [crowding.factor(m.num_replicas) for m in measurements]
            # Step time without contention.
            alone = [cycle / f for cycle, f in zip(cycles, factors, strict=True)]
            rest = [
                seconds - compute.of(m.examples, m.has_ballast)
                for seconds, m in zip(alone, measurements, strict=True)
            ]
            found.append((solve(rows, rest, weights=alone), crowding))
        # Of equal errors `min` takes the first, which has the least contention.
        solution, crowding = min(found, key=lambda pair: pair[0].error)
        update, message, byte = solution.coefficients
        told = zip(_COSTS, solution.is_identifiable, strict=True)
        return cls(
            compute=compute,
            exchange=exchange,
            crowding=crowding,
            seconds_per_update=update,
            local=Network(seconds_per_message=message, seconds_per_byte=byte),
            not_identifiable=tuple(
                cost for cost, is_identifiable in told if not is_identifiable
            ),
        )

    def measured_here(self, num_replicas: int, examples: float) -> float:
        """Returns seconds per step if all replicas share the cores of one machine."""
        traffic = self.exchange.traffic(num_replicas)
        return self._here(num_replicas, self.compute.of(examples), traffic)

    def of(self, run: Measurement) -> float:
        """Returns the predicted seconds per step of a run, with its gradient bytes."""
        compute = self.compute.of(run.examples, run.has_ballast)
        return self._here(run.num_replicas, compute, _traffic(run, self.exchange))

    def _here(self, num_replicas: int, compute: float, traffic: Traffic) -> float:
        cycle = self.crowding.factor(num_replicas) * (
            compute
            + self.seconds_per_update
            + self.local.seconds_per_message * traffic.messages_in_a_row
            + self.local.seconds_per_byte * traffic.bytes_in_a_row
        )
        # Asynchronous replicas together apply `num_replicas` updates in a cycle.
        return cycle if self.exchange.is_synchronous else cycle / num_replicas

    def elsewhere(self, num_replicas: int, examples: float, network: Network) -> Parts:
        """Predicts a step where each replica has a machine like this one to itself.

        A network cannot make software faster than the measured local exchange.
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
        # The connection that all replicas share bounds the rate of asynchronous
        # updates.
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
    """Returns the relative error of each run, predicted from all other runs."""
    errors = []
    for left_out in measurements:
        others = [m for m in measurements if m is not left_out]
        model = Model.fitted(others, compute, exchange, cores)
        errors.append(model.of(left_out) / left_out.step_seconds - 1)
    return errors


def _crowdings(cores: int) -> Iterator[CpuContention]:
    # 0 busy cores: no contention.
    for busy_cores in np.linspace(0.0, cores, _STEPS_OF_BUSY_CORES):
        for contention in _CONTENTIONS:
            yield CpuContention(
                cores=cores, busy_cores=float(busy_cores), contention=float(contention)
            )


def _cycle(measurement: Measurement, exchange: Exchange) -> float:
    """Returns the seconds that one replica needs per update by itself.

    Asynchronous replicas overlap: each applies one of `num_replicas` updates in that
    time.
    """
    together = 1 if exchange.is_synchronous else measurement.num_replicas
    return measurement.step_seconds * together


def _traffic(run: Measurement, exchange: Exchange) -> Traffic:
    own = dataclasses.replace(exchange, gradient_bytes=run.gradient_bytes)
    return own.traffic(run.num_replicas)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The step time of a short run.

    Attributes:
      num_replicas: Number of replicas.
      examples: Number of examples that each replica computed for an update.
      step_seconds: Median seconds between two updates.
      gradient_bytes: Bytes of a replica's gradients, ballast included; 0 with one
        replica that sends nothing.
      has_ballast: True if there were weights that compute nothing.
    """

    num_replicas: int
    examples: float
    step_seconds: float
    gradient_bytes: float
    has_ballast: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Compute time of an update by one replica with a machine to itself.

    Attributes:
      seconds: Seconds independent of the number of examples.
      seconds_per_example: Additional seconds per example.
      seconds_of_ballast: Additional seconds with ballast.
    """

    seconds: float
    seconds_per_example: float
    seconds_of_ballast: float = 0.0

    @classmethod
    def fitted(cls, measurements: Sequence[Measurement]) -> Compute:
        """Fits the compute time to runs on one device.

        Relative errors have equal weight.
        """
        rows = [(1.0, m.examples, float(m.has_ballast)) for m in measurements]
        seconds = [m.step_seconds for m in measurements]
        fixed, per_example, ballast = solve(rows, seconds, weights=seconds).coefficients
        return cls(
            seconds=fixed, seconds_per_example=per_example, seconds_of_ballast=ballast
        )

    def of(self, examples: float, has_ballast: bool = False) -> float:
        """Returns the seconds for a number of examples."""
        ballast = self.seconds_of_ballast if has_ballast else 0.0
        return self.seconds + self.seconds_per_example * examples + ballast
