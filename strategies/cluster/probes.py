"""Probes of the servers of other tasks.

This module does not import TensorFlow.
"""

import enum
import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from strategies.common.errors import PeerLostError

T = TypeVar("T")

REMEDY = "start all tasks again, with --resume=auto to continue the run."
_CONNECT_SECONDS = 1.0
_POLL_SECONDS = 0.1
# Errors of a connection that show the other task's state: its machine refuses or ends
# the connection, or its name is gone. After any other error its state is unknown: no
# packet comes back, no name server answers, or this process lacks descriptors or ports.
_ANSWERS = (
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EPIPE,
    socket.EAI_NONAME,
    socket.EAI_NODATA,
)
# Errors of a connection that this process cannot even attempt. EADDRNOTAVAIL is none:
# localhost without IPv6 gives it too, at its second address.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def host_and_port(address: str) -> tuple[str, int]:
    """Returns both parts of host:port; an IPv6 address loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_listening(address: str) -> bool:
    """Returns whether a process accepts connections at host:port."""
    try:
        return accepts(address)
    except OSError:
        return False


def accepts(address: str) -> bool:
    """Returns whether a process accepts connections, if this one is able to look.

    Raises:
      OSError: This process lacks file descriptors or memory.
    """
    # Without descriptors no name is resolved either, with an error of another kind.
    socket.socket().close()
    try:
        with _connection_to(address):
            return True
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return False


def wait_until_gone(addresses: Sequence[str], seconds: float) -> None:
    """Waits until no process listens at any host:port, for some seconds at most."""
    deadline = time.monotonic() + seconds
    while any(map(is_listening, addresses)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


class PeerState(enum.Enum):
    """State of a task, by the outcome of a connection to it."""

    # The connection was refused or reset, or the name of the host is unknown.
    DEAD = enum.auto()
    # There was no answer within a second, or this process could not ask.
    SILENT = enum.auto()
    # A server answered; without `must_serve`, the connection was accepted.
    SERVING = enum.auto()


def peer_state(address: str, must_serve: bool = True) -> PeerState:
    """Returns whether a gRPC server at host:port is dead, unresponsive or serving.

    Any process that listens counts as serving without `must_serve`.
    """
    try:
        # The kernel accepts connections for a stopped process, too. A running server
        # sends a SETTINGS frame first, without a request (RFC 9113, 3.4).
        with _connection_to(address) as connection:
            is_there = not must_serve or bool(connection.recv(1))
            return PeerState.SERVING if is_there else PeerState.SILENT
    except OSError as error:
        is_dead = error.errno in _ANSWERS
        return PeerState.DEAD if is_dead else PeerState.SILENT


def _connection_to(address: str) -> socket.socket:
    """Returns a connection to host:port.

    Raises:
      OSError: There is no connection within a second.
    """
    # The limit of a second stays on the socket and also bounds `recv`.
    return socket.create_connection(host_and_port(address), _CONNECT_SECONDS)


def is_serving(address: str) -> bool:
    """Returns whether a running gRPC server answers at host:port."""
    return peer_state(address) is PeerState.SERVING


def ask_each(tasks: Mapping[str, str], ask: Callable[[str, str], T]) -> dict[str, T]:
    """Returns the result of a function of each task's name and address, by name."""
    # In parallel, because a machine that is off takes a second.
    with ThreadPoolExecutor(max_workers=32) as pool:
        return dict(zip(tasks, pool.map(ask, tasks, tasks.values()), strict=True))


def for_each(tasks: Mapping[str, str], look: Callable[[str], T]) -> dict[str, T]:
    """Returns the result of a function of each task's address, by the task's name."""
    return ask_each(tasks, lambda _, address: look(address))


class PeerProbe:
    """Peer that this task needs, and the time for which the peer may be unreachable."""

    def __init__(
        self,
        task: str,
        address: str,
        patience_seconds: float,
        silence_seconds: float = 0.0,
        must_serve: bool = False,
    ):
        """Starts without a check.

        Args:
          task: Name of the peer.
          address: Address of the peer, host:port.
          patience_seconds: Longest time without a server at the address, such as while
            one server there replaces another.
          silence_seconds: Longest time without any response of the peer's machine, if
            it is more than `patience_seconds`.
          must_serve: True if a process that listens and is suspended does not count.
        """
        self._task = task
        self._address = address
        self._patience_seconds = patience_seconds
        self._silence_seconds = max(patience_seconds, silence_seconds)
        self._must_serve = must_serve
        self._missed_since: float | None = None

    def require(self) -> None:
        """Raises PeerLostError once the peer has been unreachable for too long."""
        started = time.monotonic()
        state = peer_state(self._address, self._must_serve)
        if state is PeerState.SERVING:
            self._missed_since = None
            return
        patience, what = self._patience_seconds, "was lost"
        if state is PeerState.SILENT:
            patience, what = self._silence_seconds, "does not answer"
        # Time counts from the start of the first failed attempt: an attempt that times
        # out takes a second itself.
        self._missed_since = self._missed_since or started
        if time.monotonic() - self._missed_since > patience:
            raise PeerLostError(f"{self._task} at {self._address} {what}: {REMEDY}")
