"""TCP connections of this process to other tasks.

gRPC opens them, and TensorFlow 2.21 sets no time limit for them: neither for a closure
nor for a connection whose other side is silent.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, MutableMapping

import psutil

from strategies.cluster.probes import host_and_port
from strategies.cluster.rendezvous import sockets_of

_LARGEST_INT = 2**31 - 1


def connect_without_proxy(
    addresses: Iterable[str], environment: MutableMapping[str, str]
) -> None:
    """Lets gRPC connect to other tasks directly where a proxy is set for HTTPS.

    gRPC sends connections to any host through `https_proxy`, those to 127.0.0.1
    included (grpc/doc/environment_variables.md). A proxy of a company refuses them, and
    TensorFlow then waits for the tasks in vain.

    Args:
      addresses: Addresses (host:port) of all tasks: a task connects to itself, too.
      environment: Environment of this process, in which `no_grpc_proxy` is set.
    """
    # gRPC ignores `no_proxy` where `no_grpc_proxy` is set.
    known = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
    hosts = [host_and_port(address)[0] for address in addresses]
    names = [*filter(None, known.split(",")), *hosts]
    environment["no_grpc_proxy"] = ",".join(dict.fromkeys(names))


def disconnect(address: str) -> None:
    """Shuts down this process's TCP connections to host:port.

    To TensorFlow the other process then seems to have ended: operations that wait for
    it fail at once.
    """
    _for_each_connection(
        [address], lambda connection: connection.shutdown(socket.SHUT_RDWR)
    )


def limit_silence(addresses: Iterable[str], patience_seconds: float) -> None:
    """Lets the kernel end TCP connections whose other side is silent for too long.

    A thread that calls `disconnect` is not enough. When the chief of parameter servers
    traces a function, TensorFlow sends it to every worker and waits for the answer with
    Python's lock held, so that no other thread runs. (`GrpcEagerClient`'s
    `StreamingEnqueueAsync` waits because
    tensorflow/python/distribute/parameter_server_strategy_v2.py disables streaming.)

    Args:
      addresses: Addresses (host:port) of the other tasks.
      patience_seconds: Longest silence of a host. A suspended process is not silent:
        its kernel still acknowledges what arrives.
    """
    # The kernel takes an int; 0 would be its own default.
    milliseconds = min(max(round(1000 * patience_seconds), 1), _LARGEST_INT)

    def limit(connection: socket.socket) -> None:
        # Data that is not acknowledged for this long ends the connection (tcp(7)).
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    _for_each_connection(addresses, limit)


def _for_each_connection(
    addresses: Iterable[str], act: Callable[[socket.socket], None]
) -> None:
    """Calls a function with each TCP connection of this process to given addresses."""
    # An address that cannot be resolved now matches no connection.
    wanted = {place[:2] for address in addresses for place in sockets_of(address)}
    for found in psutil.Process().net_connections(kind="tcp"):
        remote = found.raddr
        # gRPC writes IPv4 addresses as IPv6 addresses, such as ::ffff:127.0.0.1.
        if not remote or (remote[0].removeprefix("::ffff:"), remote[1]) not in wanted:
            continue
        # gRPC may have closed it in the meantime, and another file have its number.
        with contextlib.suppress(OSError), _duplicate(found.fd) as connection:
            if connection.getpeername()[:2] == tuple(remote):
                act(connection)


def _duplicate(descriptor: int) -> socket.socket:
    """Returns a socket whose end does not close the descriptor, which gRPC owns.

    Raises:
      OSError: The descriptor is not that of a socket.
    """
    number = os.dup(descriptor)
    try:
        return socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise
