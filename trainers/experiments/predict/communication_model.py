"""Communication cost of an update, by the way replicas exchange gradients."""

from __future__ import annotations

import dataclasses

# A request for weights and its answer, a gradient and its confirmation.
_MESSAGES_WITH_SERVERS = 4
# A gradient to the one place, and the result back.
_MESSAGES_WITH_ONE_PLACE = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Minimum time of a message and of a byte, in seconds."""

    seconds_per_message: float
    seconds_per_byte: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Cost of sending over a link instead of within a machine.

    Attributes:
      seconds_per_byte: Processor time of a byte in seconds, beside the time on the
        wire. It is longer than over loopback because packets are smaller, and shorter
        because processors work while the wire is busy.
      wire_factor: Time on the wire, as a multiple of bytes by bandwidth: headers of
        packets, and pauses between them.
    """

    seconds_per_byte: float
    wire_factor: float


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of one update.

    Attributes:
      messages_in_a_row: Number of messages, each of which is sent after the one before
        it has arrived.
      bytes_of_each: Bytes that the processor of each replica sends and receives.
      bytes_of_servers: Bytes that the processors of all servers, or the one place of
        the sum, send and receive for all replicas together.
      bytes_on_a_link: Bytes over the busiest link, one after another. Each host has one
        link, which sends and receives at the same time.
    """

    messages_in_a_row: float
    bytes_of_each: float
    bytes_of_servers: float
    bytes_on_a_link: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Exchange of gradients between replicas.

    Attributes:
      kind: Value of `Traits.exchange`.
      is_synchronous: True if an update has the gradients of all replicas.
      gradient_bytes: Bytes of one replica's gradients, in the form in which they are
        sent.
      num_servers: Number of servers that hold the weights, where there are servers.
    """

    kind: str
    is_synchronous: bool
    gradient_bytes: float
    num_servers: int = 1

    def traffic(self, num_replicas: int) -> Traffic:
        """Returns the communication of an update.

        That of an asynchronous update is of one replica only.
        """
        # A single worker still reads its weights from servers.
        if num_replicas == 1 and self.kind != "servers":
            return Traffic(0, 0, 0, 0)
        together = self.shares(num_replicas)
        messages, *multiples = _FORMULAS[self.kind](together, self.num_servers)
        each, servers, link = (self.gradient_bytes * times for times in multiples)
        return Traffic(messages, each, servers, link)

    @property
    def overlaps_software(self) -> bool:
        """True if software handles one message while another one is on the link."""
        # A server has messages of all variables and workers; around a ring, each
        # message waits for the one before.
        return self.kind == "servers"

    def shares(self, num_replicas: int) -> int:
        """Returns the number of replicas that divide a global batch."""
        # An asynchronous replica computes a whole one for each of its updates.
        return num_replicas if self.is_synchronous else 1

    def gradient_bytes_from(self, bytes_per_replica: float, num_replicas: int) -> float:
        """Returns the bytes of a gradient, given the bytes that a replica sends.

        Args:
          bytes_per_replica: Value of `Communication.bytes_per_step_per_replica`.
          num_replicas: Number of replicas of the run.
        """
        if self.kind == "ring":
            return bytes_per_replica / (2 * (num_replicas - 1) / num_replicas)
        if self.kind == "all_gather":
            return bytes_per_replica / (num_replicas - 1)
        return bytes_per_replica / 2


def _reduce_to_one(replicas: int, servers: int) -> tuple[float, ...]:
    """Counts the traffic if one replica gets all gradients and returns the sum."""
    del servers
    there_and_back = 2.0 * max(replicas - 1, 1)
    return _MESSAGES_WITH_ONE_PLACE, 0.0, there_and_back, there_and_back


def _ring(replicas: int, servers: int) -> tuple[float, ...]:
    """Counts the traffic of a ring: N pieces, sent N-1 times to add and N-1 to share.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    del servers
    parts = 2 * (replicas - 1) / replicas
    return 2 * (replicas - 1), parts, 0.0, parts


def _all_gather(replicas: int, servers: int) -> tuple[float, ...]:
    """Counts the traffic of a ring in which replicas pass on all others' parts."""
    del servers
    others = replicas - 1.0
    return others, others, 0.0, others


def _servers(replicas: int, servers: int) -> tuple[float, ...]:
    """Counts the traffic of servers: a worker reads weights and sends gradients.

    A server sends and receives its part of them for every worker.
    """
    return (
        _MESSAGES_WITH_SERVERS,
        2.0,
        2.0 * replicas,
        2 * max(1.0, replicas / servers),
    )


# For each kind of exchange a function of the numbers of replicas and servers. It
# returns the attributes of `Traffic`, bytes as multiples of those of a gradient.
_FORMULAS = {
    "reduce_to_one": _reduce_to_one,
    "ring": _ring,
    "all_gather": _all_gather,
    "servers": _servers,
}
