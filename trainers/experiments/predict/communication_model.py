"""Communication cost of an update, by the way replicas exchange gradients."""

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
            return Traffic(0, 0.0, 0.0, 0.0)
        size, count = self.gradient_bytes, self.shares(num_replicas)
        if self.kind == "ring":
            # N pieces, sent N-1 times to add and N-1 to share (Patarasuk and Yuan,
            # Bandwidth optimal all-reduce algorithms, 2009).
            bytes_of_each = 2 * (count - 1) / count * size
            return Traffic(2 * (count - 1), bytes_of_each, 0.0, bytes_of_each)
        if self.kind == "all_gather":
            # Replicas in a ring pass on all others' parts.
            others = (count - 1) * size
            return Traffic(count - 1, others, 0.0, others)
        if self.kind == "reduce_to_one":
            there_and_back = 2 * max(count - 1, 1) * size
            return Traffic(
                _MESSAGES_WITH_ONE_PLACE, 0.0, there_and_back, there_and_back
            )
        # A worker reads weights and sends gradients; a server sends and receives its
        # part of them for every worker.
        over_link = 2 * max(1.0, count / self.num_servers) * size
        return Traffic(_MESSAGES_WITH_SERVERS, 2 * size, 2 * count * size, over_link)

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
