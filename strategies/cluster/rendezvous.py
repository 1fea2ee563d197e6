"""Rendezvous of all tasks at start-up, and probes of their servers.

TensorFlow's own start-up waits without limit and without a message: with one worker
missing, the leader of MultiWorkerMirroredStrategy hung for over 600 s and ignored
SIGTERM (TensorFlow 2.21). This module names the missing tasks. It does not import
TensorFlow.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from strategies.cluster.security import is_loopback
from strategies.cluster.spec import Cluster
from strategies.common.errors import ClusterIncompleteError, PeerLostError, UsageError

REMEDY = "start all tasks again, with --resume=auto to continue the run."
_POLL_SECONDS = 0.1
_CONNECT_SECONDS = 1.0
# Errors of a connection if no packet comes back from the other machine: it is off, or a
# cable on the way is out. The state of its task is unknown then.
_UNHEARD = (
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
)


def is_listening(address: str) -> bool:
    """Returns whether a process accepts connections at host:port."""
    try:
        with _connection_to(address):
            return True
    except OSError:
        return False


class PeerState(enum.Enum):
    """Outcome of a connection to a task."""

    # Connection refused, no response, serving.
    GONE = "its machine says that nobody accepts it"
    SILENT = "nothing is said"
    THERE = "a server begins to talk"


def peer_state(address: str) -> PeerState:
    """Returns whether a gRPC server at host:port is dead, unresponsive or serving."""
    try:
        # The kernel accepts connections for a stopped process, too. A running server
        # sends a SETTINGS frame first, without a request (RFC 9113, 3.4).
        with _connection_to(address) as connection:
            return PeerState.THERE if connection.recv(1) else PeerState.SILENT
    except OSError as error:
        return PeerState.SILENT if _is_silence(error) else PeerState.GONE


def _is_silence(error: OSError) -> bool:
    return isinstance(error, TimeoutError) or error.errno in _UNHEARD


def _connection_to(address: str) -> socket.socket:
    """Returns a connection to host:port.

    Raises:
      OSError: There is no connection within a second.
    """
    # IPv6 addresses stand in brackets, which `create_connection` does not take. The
    # limit of a second stays on the socket and also bounds `recv`.
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS)


def is_serving(address: str) -> bool:
    """Returns whether a running gRPC server answers at host:port."""
    return peer_state(address) is PeerState.THERE


class PeerProbe:
    """Peer that this task needs, and the time for which the peer may be unreachable."""

    def __init__(
        self,
        task: str,
        address: str,
        patience_seconds: float,
        silence_seconds: float = 0.0,
    ):
        """Starts without a check.

        Args:
          task: Name of the peer.
          address: Address of the peer, host:port.
          patience_seconds: Longest time without a server at the address, such as while
            one server there replaces another.
          silence_seconds: Longest time without any response of the peer's machine, if
            it is more than `patience_seconds`.
        """
        self._task = task
        self._address = address
        self._patience_seconds = patience_seconds
        self._silence_seconds = max(patience_seconds, silence_seconds)
        self._missed_since: float | None = None

    def require(self) -> None:
        """Checks that the peer has not been unreachable for too long.

        Raises:
          PeerLostError: The peer is dead or does not answer.
        """
        patience, what = self._patience_seconds, "was lost"
        started = time.monotonic()
        try:
            with _connection_to(self._address):
                self._missed_since = None
                return
        except OSError as error:
            if _is_silence(error):
                patience, what = self._silence_seconds, "does not answer"
        # Time counts from the start of the first failed attempt: an attempt that times
        # out takes a second itself.
        self._missed_since = self._missed_since or started
        if time.monotonic() - self._missed_since > patience:
            raise PeerLostError(f"{self._task} at {self._address} {what}: {REMEDY}")


@contextlib.contextmanager
def hold_port(cluster: Cluster) -> Iterator[socket.socket]:
    """Accepts connections at this task's own address inside the block.

    TensorFlow's server accepts them afterwards.

    Raises:
      UsageError: Another process uses the address.
    """
    try:
        listener = bound_socket(cluster.address, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"the address {cluster.address} of {cluster.task} cannot be used "
            f"({error.strerror}): give each task a free port of its own machine."
        ) from error
    with listener:
        # The kernel completes up to 64 connections without a call of `accept`.
        listener.listen(64)
        yield listener


def _check_own_address(cluster: Cluster) -> None:
    """Checks that no other task's host is another name of this task's.

    This task would answer in its place, and TensorFlow would wait for it without limit.
    """
    own = sockets_of(cluster.address)
    for task, address in cluster.peers().items():
        same_port = address.rpartition(":")[2] == cluster.address.rpartition(":")[2]
        if same_port and own & sockets_of(address):
            raise UsageError(
                f"the address {cluster.address} of {cluster.task} is {address} of "
                f"{task} by another name: give each task a host and port of its own."
            )


def sockets_of(address: str) -> set[tuple[Any, ...]]:
    """Returns the numeric socket addresses of a host:port; none if it is unknown."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {place for *_, place in found}


def bound_socket(address: str, kind: socket.SocketKind) -> socket.socket:
    """Returns a socket that other tasks reach at host:port of this task.

    Unless the host is loopback, the socket is at every address of this machine, of IPv4
    and IPv6. The address that others find under the host's name may be another one
    here: Debian and Ubuntu give the own name of a machine to 127.0.1.1, and behind
    address translation no interface has it.

    Args:
      address: Address of this task, host:port.
      kind: SOCK_STREAM for TCP, SOCK_DGRAM for UDP.

    Raises:
      OSError: The port is in use.
    """
    host, _, port = address.rpartition(":")
    place: Any = ("", int(port))
    family = socket.AF_INET
    is_local, is_dual = is_loopback(host), socket.has_dualstack_ipv6()
    if is_local:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=kind)
        family, *_, place = min(found, key=lambda one: one[0] != socket.AF_INET)
    elif is_dual:
        family = socket.AF_INET6
    bound = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            # Closed connections of an earlier run may still hold the port for a minute.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_dual and not is_local:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(place)
    except OSError:
        bound.close()
        raise
    return bound


def wait_for_tasks(
    tasks: Mapping[str, str],
    seconds: float,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Waits until every task has accepted a connection at least once.

    Args:
      tasks: Address (host:port) of each task by name.
      seconds: Longest wait for all tasks together, in seconds.
      stop_requested: Function that returns True to end the wait early.

    Raises:
      ClusterIncompleteError: Some tasks did not start in time. The message names them.
    """
    deadline = time.monotonic() + seconds
    # A task that has answered once is not asked again.
    missing = dict(tasks)
    while missing and not stop_requested():
        missing = {t: a for t, a in missing.items() if not is_listening(a)}
        if missing and time.monotonic() > deadline:
            names = ", ".join(f"{task} at {at}" for task, at in missing.items())
            raise ClusterIncompleteError(
                f"the cluster did not assemble within {seconds:g} s: {names} did not "
                "start; see that task's log, or raise "
                "--set=strategy.startup_timeout_seconds."
            )
        if missing:
            time.sleep(_POLL_SECONDS)


def wait_for_cluster(cluster: Cluster, seconds: float) -> None:
    """Waits until this task has found all others.

    Raises:
      UsageError: this task's address is taken, or another task's as well.
      ClusterIncompleteError: a task did not come in time.
    """
    _check_own_address(cluster)
    with hold_port(cluster):
        wait_for_tasks(cluster.peers(), seconds)
