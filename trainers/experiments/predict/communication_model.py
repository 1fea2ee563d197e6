"""What an update sends, by the way in which a strategy brings gradients together."""

from __future__ import annotations

import dataclasses

# Weights are asked for and come, gradients go and are confirmed.
_MESSAGES_WITH_SERVERS = 4
_MESSAGES_WITH_ONE_PLACE = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What one update waits for on the network.

    Attributes:
      messages_in_a_row: each sent when the one before has come.
      bytes_in_a_row: that go over the busiest connection, one after another.
    """

    messages_in_a_row: float
    bytes_in_a_row: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """How replicas exchange gradients.

    Attributes:
      kind: `Traits.exchange`.
      is_synchronous: whether an update has the gradients of all replicas.
      gradient_bytes: of one replica, in the form in which they travel.
      num_servers: over which weights are spread, where there are servers.
    """

    kind: str
    is_synchronous: bool
    gradient_bytes: float
    num_servers: int = 1

    def traffic(self, num_replicas: int) -> Traffic:
        """What an update waits for; if replicas do not wait for each other, one's."""
        if num_replicas == 1 and self.kind != "servers":
            return Traffic(messages_in_a_row=0, bytes_in_a_row=0)
        messages, sizes = _FORMULAS[self.kind]
        together = num_replicas if self.is_synchronous else 1
        return Traffic(
            messages_in_a_row=messages(together),
            bytes_in_a_row=sizes(together, self.num_servers) * self.gradient_bytes,
        )

    def bytes_that_all_share(self) -> float:
        """Of one update, over the busiest connection that all replicas use.

        Where they do not wait for each other, this bounds how fast all together can be.
        """
        if self.kind == "servers":
            return 2 * self.gradient_bytes / self.num_servers
        return 2 * self.gradient_bytes

    def gradient_bytes_from(self, bytes_per_replica: float, num_replicas: int) -> float:
        """The other way round from `Communication.bytes_per_step_per_replica`."""
        if self.kind == "ring":
            return bytes_per_replica / (2 * (num_replicas - 1) / num_replicas)
        return bytes_per_replica / 2


# Of a number of replicas, and for sizes of a number of servers: messages in a row, and
# sizes of a gradient that go over the busiest connection.
_FORMULAS = {
    # All send theirs to one, and that one sends the result back to all.
    "one_place": (
        lambda replicas: _MESSAGES_WITH_ONE_PLACE,
        lambda replicas, servers: 2.0 * max(replicas - 1, 1),
    ),
    # Each of N pieces goes N-1 times around to be added and N-1 times to be shared:
    # Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    "ring": (
        lambda replicas: 2 * (replicas - 1),
        lambda replicas, servers: 2 * (replicas - 1) / replicas,
    ),
    # A worker reads all weights and sends all gradients; a server does so with its
    # part, for every worker.
    "servers": (
        lambda replicas: _MESSAGES_WITH_SERVERS,
        lambda replicas, servers: 2 * max(1.0, replicas / servers),
    ),
}
