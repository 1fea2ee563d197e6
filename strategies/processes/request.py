"""Message that asks a template for a process."""

import dataclasses
import json
import socket
from collections.abc import Mapping, Sequence

# Larger than every command line with its environment that Linux accepts from a shell
# in practice; a longer message is refused, and the process is started otherwise.
_LARGEST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Process that is asked for.

    Attributes:
      command: Words of the command line: interpreter, `-m`, module, arguments.
      parent: ID of the process that asks, which becomes the parent.
      namespaces: Kinds of the namespaces to enter, in this order; a descriptor of each
        follows the two of the standard output and error.
      cores: Cores that the process may use; empty for the template's.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    parent: int
    namespaces: Sequence[str] = ()
    cores: Sequence[int] = ()

    def send(self, connection: socket.socket, descriptors: Sequence[int]) -> None:
        """Sends the message with open descriptors.

        Raises:
          OSError: The message is too long, or nobody receives it.
        """
        message = json.dumps(dataclasses.asdict(self)).encode()
        socket.send_fds(connection, [message], list(descriptors))


def receive(connection: socket.socket) -> tuple[Request, list[int]] | None:
    """Returns the next message with its descriptors, or None at the end of all."""
    message, descriptors, _, _ = socket.recv_fds(
        connection, _LARGEST_BYTES, _MOST_DESCRIPTORS
    )
    return (Request(**json.loads(message)), descriptors) if message else None
