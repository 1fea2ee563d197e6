"""Rendezvous of all tasks at start-up.

TensorFlow's own start-up waits without limit and without a message: with one worker
missing, the leader of MultiWorkerMirroredStrategy hung for over 600 s and ignored
SIGTERM (TensorFlow 2.21). This module names the missing tasks. It does not import
TensorFlow.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from strategies.cluster.probes import (
    for_each,
    host_and_port,
    is_listening,
    is_serving,
)
from strategies.cluster.security import is_loopback
from strategies.cluster.spec import Cluster
from strategies.common.errors import ClusterIncompleteError, UsageError

_POLL_SECONDS = 0.1
_SECONDS_BETWEEN_LOOKS_AT_LEADER = 0.01
_SECONDS_BETWEEN_ACCEPTS = 0.02
# TensorFlow waits longer for a leader that does not serve, and watchdogs end the wait.
_SECONDS_FOR_LEADER = 5.0


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
        # The kernel completes so many connections without a call of `accept`.
        listener.listen(socket.SOMAXCONN)
        yield listener


@contextlib.contextmanager
def accepting(
    listener: socket.socket,
    answer: Callable[[socket.socket], object] = lambda connection: None,
) -> Iterator[None]:
    """Accepts, answers and closes connections in a thread inside the block.

    A connection that nobody accepts keeps its place with the kernel, even after the
    other side has closed it.
    """
    is_over = threading.Event()
    listener.setblocking(False)

    def serve() -> None:
        while not is_over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                # Nobody connects, or this process lacks file descriptors.
                is_over.wait(_SECONDS_BETWEEN_ACCEPTS)
                continue
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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
    try:
        found = socket.getaddrinfo(*host_and_port(address), type=socket.SOCK_STREAM)
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
    host, port = host_and_port(address)
    place: Any = ("", port)
    family = socket.AF_INET
    is_local, is_dual = is_loopback(host), socket.has_dualstack_ipv6()
    if is_local:
        found = socket.getaddrinfo(host, port, type=kind)
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
        found = for_each(missing, is_listening)
        missing = {t: a for t, a in missing.items() if not found[t]}
        if missing and time.monotonic() > deadline:
            names = ", ".join(f"{t} at {_in_words(a)}" for t, a in missing.items())
            raise ClusterIncompleteError(
                f"the cluster did not assemble within {seconds:g} s: {names} did not "
                "start; see that task's log, or raise "
                "--set=strategy.startup_timeout_seconds."
            )
        if missing:
            time.sleep(_POLL_SECONDS)


def _in_words(address: str) -> str:
    unknown = " (a host name that is not known here)"
    return address if sockets_of(address) else address + unknown


def wait_for_cluster(cluster: Cluster, seconds: float) -> None:
    """Waits until this task has found all others.

    Raises:
      UsageError: this task's address is taken, or another task's as well.
      ClusterIncompleteError: a task did not come in time.
    """
    _check_own_address(cluster)
    with hold_port(cluster) as listener, accepting(listener):
        wait_for_tasks(cluster.peers(), seconds)
        _wait_for_leader(cluster)


def _wait_for_leader(cluster: Cluster) -> None:
    """Waits some seconds at most for TensorFlow's server in the first computing task.

    A task that connects earlier waits for a second until it tries again
    (`GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS` of gRPC), and the others wait for it.
    """
    leader = cluster.computing[0]
    if cluster.address == leader:
        return
    deadline = time.monotonic() + _SECONDS_FOR_LEADER
    while not is_serving(leader) and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_LOOKS_AT_LEADER)
