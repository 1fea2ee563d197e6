"""Step time as a function of replicas, batch and network.

  step time = compute(examples of a replica) + software + message x messages
              + byte x bytes of the processors + bytes on the busiest link / bandwidth

Servers run software and handle messages while a link is busy: in a run over links
neither adds to the step, and no run is faster than over loopback.

The model is fitted to short runs. The terms of the network are those in Hockney, "The
communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994, added up over
messages that wait for each other. Replicas on one machine share its cores, and the
work of a processor takes longer the more they are; the time of a link does not.

Three kinds of runs separate the terms. Padding weights make gradients larger, a small
network makes them smaller, in as many messages, which tells bytes from messages and
software. Emulated networks of two bandwidths tell bytes on the wire from bytes that a
processor serializes, sends, receives and adds. One device measures the compute time of
padding weights and of the small network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from trainers.experiments.predict.communication_model import Exchange, Network
from trainers.experiments.predict.compute_model import (
    APART,
    Compute,
    CpuContention,
    Measurement,
    candidates,
)
from trainers.experiments.predict.least_squares import solve


class Costs(NamedTuple):
    """Fitted costs of a step; only a run over links has the last two.

    Attributes:
      update: Seconds that the strategy adds to each update, independent of the bytes it
        sends.
      message: Processor time of a message in seconds, where the runs were measured.
      byte: Processor time of a byte in seconds there.
      link_byte: Processor time of a byte over a link in seconds, beside the time on the
        wire. It is longer than over loopback because packets are smaller, and shorter
        because processors work while the wire is busy.
      wire: Time on the wire, as a multiple of bytes by bandwidth: headers of packets,
        and pauses between them.
    """

    update: float
    message: float
    byte: float
    link_byte: float = 0.0
    wire: float = 0.0


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
      costs: Costs of an update, a message, a byte and a link.
      has_links: True if a run had a link.
      not_identifiable: Costs that the runs do not identify. Such a cost is below
        run-to-run noise, or is part of the costs before it in every run.
    """

    compute: Compute
    exchange: Exchange
    crowding: CpuContention
    costs: Costs
    has_links: bool = False
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

        The runs had several numbers of replicas, which shared the cores of one machine.
        """
        # A run of milliseconds counts as much as one of seconds.
        weights = [m.step_seconds for m in measurements]
        found = []
        # The model is linear in the costs but not in contention: contention is
        # searched on a grid, with a least squares fit at each point.
        for crowding in candidates(cores):
            rows, rest = [], []
            for m in measurements:
                units = _units_of_run(m, exchange, crowding)
                rows.append(units[1:])
                computed = units.computing * compute.of(m.examples, m.size)
                rest.append(m.step_seconds - computed)
            found.append((solve(rows, rest, weights), crowding))
        # Of equal errors `min` takes the first, which has the least contention.
        solution, crowding = min(found, key=lambda pair: pair[0].error)
        has_links = any(m.bandwidth_mbit for m in measurements)
        # Costs of links are not reported if no run had one.
        names = Costs._fields if has_links else Costs._fields[:3]
        found_costs = zip(names, solution.is_identifiable, strict=False)
        return cls(
            compute=compute,
            exchange=exchange,
            crowding=crowding,
            costs=Costs(*solution.coefficients),
            has_links=has_links,
            not_identifiable=tuple(
                cost for cost, is_identifiable in found_costs if not is_identifiable
            ),
        )

    def of(self, run: Measurement) -> float:
        """Returns the predicted seconds per step of a run, with its gradient bytes.

        All replicas share the cores of the machine where the model was fitted.
        """
        units = _units_of_run(run, self.exchange, self.crowding)
        costs = zip(units[1:], self.costs, strict=True)
        of_computing = units.computing * self.compute.of(run.examples, run.size)
        seconds = of_computing + sum(unit * cost for unit, cost in costs)
        if run.bandwidth_mbit is None:
            return seconds
        # No link is faster than loopback.
        return max(seconds, self.of(dataclasses.replace(run, bandwidth_mbit=None)))

    def elsewhere(self, num_replicas: int, examples: float, network: Network) -> Parts:
        """Predicts a step where each replica has a machine like this one to itself.

        A network cannot make software faster than the measured local exchange.
        """
        # Seconds per byte to megabits per second.
        bandwidth_mbit = 8e-6 / network.seconds_per_byte
        units = _units(self.exchange, APART, num_replicas, bandwidth_mbit)
        costs = self.costs
        # Without measurements of links, bytes are processed while they are sent.
        over_link = units.wire
        if self.has_links:
            over_link = units.link_byte * costs.link_byte + units.wire * costs.wire
        of_processors = units.link_byte * costs.byte
        transfer = max(of_processors, over_link)
        software = units.update * costs.update
        if self.exchange.overlaps_software:
            # The link hides the processors' work on bytes first.
            software = max(software - (transfer - of_processors), 0.0)
        return Parts(
            compute=units.computing * self.compute.of(examples),
            software=software,
            # A message that software delays for longer is not faster than here.
            latency=units.message * max(network.seconds_per_message, costs.message),
            transfer=transfer,
        )


class _Units(NamedTuple):
    """Multiple of the compute time in a step, and of each of its `Costs`."""

    computing: float
    update: float
    message: float
    byte: float
    link_byte: float
    wire: float


def _units(
    exchange: Exchange,
    crowding: CpuContention,
    num_replicas: int,
    bandwidth_mbit: float | None,
) -> _Units:
    """Returns the units of a step; `bandwidth_mbit` is None without a network.

    Replicas that do not wait for each other overlap: each applies one of N updates in
    the time that it needs for one. But a server serves one of them at a time, and
    others wait: a service of s seconds takes s / N + s (N - 1) / N.
    """
    traffic = exchange.traffic(num_replicas)
    together = 1 if exchange.is_synchronous else num_replicas
    # Crowded cores slow what processors do, but not the wire.
    sending = crowding.of_sending(num_replicas) / together
    # Servers on one machine share its cores, on several machines each has its part.
    servers = exchange.num_servers if crowding is APART else 1
    units = _Units(
        computing=crowding.of_computing(num_replicas) / together,
        update=sending,
        message=sending * traffic.messages_in_a_row,
        byte=sending * traffic.bytes_of_each + traffic.bytes_of_servers / servers,
        link_byte=0.0,
        wire=0.0,
    )
    if bandwidth_mbit is None:
        return units
    on_a_link = traffic.bytes_on_a_link / together
    if not exchange.is_synchronous:
        # A server sends to one worker while it receives from another one.
        busy = traffic.bytes_on_a_link / 2 / exchange.num_servers
        on_a_link += busy * (num_replicas - 1) / num_replicas
    # Bytes by megabits per second. A fit gives bytes over a link their own cost.
    wire = on_a_link * 8e-6 / bandwidth_mbit
    return units._replace(byte=0.0, link_byte=units.byte, wire=wire)


def _units_of_run(
    run: Measurement, exchange: Exchange, crowding: CpuContention
) -> _Units:
    """Returns `_units`, without software and messages that a busy link hides."""
    exchange = dataclasses.replace(exchange, gradient_bytes=run.gradient_bytes)
    units = _units(exchange, crowding, run.num_replicas, run.bandwidth_mbit)
    if run.bandwidth_mbit is not None and exchange.overlaps_software:
        return units._replace(update=0.0, message=0.0)
    return units


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
