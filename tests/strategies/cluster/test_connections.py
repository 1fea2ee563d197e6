"""Connections of this process to another task."""

import collections
import os
import socket
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from strategies.cluster import connections

_Connection = collections.namedtuple("_Connection", "fd raddr")
_LISTENING = _Connection(0, ())


def _disconnect(
    address: str, found: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        def net_connections(self, kind: str) -> Sequence[Any]:
            return [_LISTENING, *found]

    monkeypatch.setattr(psutil, "Process", Process)
    connections.disconnect(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_to_the_address_is_ended(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        # As gRPC opens it.
        mapped = address if ":" in address else f"::ffff:{address}"
        with socket.create_connection((mapped, port)) as connection:
            accepted, _ = server.accept()
            connections.disconnect(f"[{address}]:{port}")
            assert connection.recv(1) == b""
            accepted.close()


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(10.0, 10_000), (1e-5, 1), (1e9, 2**31 - 1)]
)
def test_the_kernel_gets_a_limit_that_it_accepts(
    seconds: float, milliseconds: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as connection:
            connections.limit_silence([f"127.0.0.1:{address[1]}"], seconds)
            option = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert connection.getsockopt(*option) == milliseconds


def test_an_address_with_a_group_ffff_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = ("fd00:ffff::5", 2222)
    asked = []

    class Socket(socket.socket):
        def getpeername(self) -> Any:
            return (*remote, 0, 0)

        def shutdown(self, how: int) -> None:
            asked.append(how)

    monkeypatch.setattr(connections, "_duplicate", lambda fd: Socket())
    there = _Connection(1, remote)
    _disconnect("[fd00:ffff::5]:2222", [there], monkeypatch)
    assert asked == [socket.SHUT_RDWR]


def test_a_descriptor_that_has_become_another_file_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = socket.socketpair()
    with one, other, open(os.devnull, "rb") as file:
        before = len(os.listdir("/proc/self/fd"))
        remote = ("10.0.0.1", 2222)
        stale = [_Connection(fd, remote) for fd in (file.fileno(), one.fileno())]
        _disconnect("10.0.0.1:2222", stale, monkeypatch)
        assert len(os.listdir("/proc/self/fd")) == before
        one.sendall(b"still open")
