"""Communication cost of an update, by the way replicas exchange gradients."""

from __future__ import annotations

import dataclasses

# A request for weights and its answer, a gradient and its confirmation.
_MESSAGES_WITH_SERVERS = 4
# A gradient to the one place, and the result back.
_MESSAGES_WITH_ONE_PLACE = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Communication that one update waits for.

    Attributes:
      messages_in_a_row: Number of messages, each of which is sent after the one before
        it has arrived.
      bytes_in_a_row: Bytes over the busiest connection, one after another.
    """

    messages_in_a_row: float
    bytes_in_a_row: float


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
        """Returns the communication that an update waits for.

        An asynchronous update waits for that of one replica only.
        """
        # A single worker still reads its weights from servers.
        if num_replicas == 1 and self.kind != "servers":
            return Traffic(messages_in_a_row=0, bytes_in_a_row=0)
        messages, sizes = _FORMULAS[self.kind]
        together = num_replicas if self.is_synchronous else 1
        return Traffic(
            messages_in_a_row=messages(together),
            bytes_in_a_row=sizes(together, self.num_servers) * self.gradient_bytes,
        )

    def bytes_that_all_share(self) -> float:
        """Returns the bytes of one update on the busiest connection shared by all.

        Where replicas do not wait for each other, these bytes bound the speed of all
        together.
        """
        if self.kind == "servers":
            # Weights and gradients, spread over the servers.
            return 2 * self.gradient_bytes / self.num_servers
        return 2 * self.gradient_bytes

    def gradient_bytes_from(self, bytes_per_replica: float, num_replicas: int) -> float:
        """Returns the bytes of a gradient, given the bytes that a replica sends.

        Args:
          bytes_per_replica: Value of `Communication.bytes_per_step_per_replica`.
          num_replicas: Number of replicas of the run.
        """
        if self.kind == "ring":
            return bytes_per_replica / (2 * (num_replicas - 1) / num_replicas)
        return bytes_per_replica / 2


# For each kind of exchange two functions: the number of messages in a row, and the
# bytes over the busiest connection in units of the bytes of a gradient.
_FORMULAS = {
    # All replicas send their gradients to one, which sends the result back to all.
    "reduce_to_one": (
        lambda replicas: _MESSAGES_WITH_ONE_PLACE,
        lambda replicas, servers: 2.0 * max(replicas - 1, 1),
    ),
    # Each of N pieces is sent N-1 times to be added and N-1 times to be distributed:
    # Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    "ring": (
        lambda replicas: 2 * (replicas - 1),
        lambda replicas, servers: 2 * (replicas - 1) / replicas,
    ),
    # A worker reads all weights and sends all gradients; a server sends and receives
    # its part of them for every worker.
    "servers": (
        lambda replicas: _MESSAGES_WITH_SERVERS,
        lambda replicas, servers: 2 * max(1.0, replicas / servers),
    ),
}
