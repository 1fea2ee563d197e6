"""Ends connections to a task that neither answers nor ends."""

from __future__ import annotations

import contextlib
import os
import socket

import psutil


def disconnect(address: str) -> None:
    """Ends this process's TCP connections to host:port.

    To TensorFlow it is as if the other process had ended: what waits for it fails at
    once. There is no limit for how long a closure may take, and none for a connection
    whose other side is silent (TensorFlow 2.21).
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port))
    except socket.gaierror:
        return  # Its name has gone as well, so that nothing can be told to be to it.
    hosts = {address[4][0] for address in found}
    for connection in psutil.Process().net_connections(kind="tcp"):
        remote = connection.raddr
        # gRPC writes addresses of version 4 as those of version 6.
        if remote and remote[1] == int(port) and remote[0].split("ffff:")[-1] in hosts:
            _end(connection.fd)


def _end(descriptor: int) -> None:
    """Ends a connection of which somebody else has the file descriptor."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        same.shutdown(socket.SHUT_RDWR)
