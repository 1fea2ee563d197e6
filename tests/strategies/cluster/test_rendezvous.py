"""Tests of the sockets at which tasks wait for each other."""

import contextlib
import socket
import threading
import time

import pytest

from strategies.cluster import node_info, rendezvous
from strategies.cluster.probes import host_and_port, is_listening
from strategies.cluster.rendezvous import (
    bound_socket,
    hold_port,
    wait_for_cluster,
    wait_for_tasks,
)
from strategies.cluster.spec import Cluster
from strategies.common.errors import ClusterIncompleteError, UsageError
from strategies.launcher.launch_config import local_cluster

_TCP = socket.SOCK_STREAM
_HAS_IPV6 = socket.has_dualstack_ipv6()
# RFC 5737 reserves this address for documents, so no machine has it.
_ELSEWHERE = "203.0.113.1"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def _task(host: str) -> tuple[Cluster, int]:
    port = _free_port()
    return Cluster(job="worker", addresses={"worker": (f"{host}:{port}",)}), port


@pytest.mark.parametrize(
    ("host", "reached", "not_reached"),
    [
        ("127.0.0.1", ["127.0.0.1"], ["[::1]"]),
        ("localhost", ["127.0.0.1", "localhost"], []),
        ("[::1]", ["[::1]"], ["127.0.0.1"]),
        # A host behind address translation has such an address. A host whose name is
        # 127.0.1.1 on itself must accept connections there.
        (_ELSEWHERE, ["127.0.0.1", "127.0.1.1", "[::1]"], []),
        ("node.invalid", ["127.0.0.1", "[::1]"], []),
    ],
)
@pytest.mark.skipif(not _HAS_IPV6, reason="this machine has no IPv6")
def test_others_reach_a_task_at_every_address_but_for_loopback(
    host: str, reached: list[str], not_reached: list[str]
) -> None:
    cluster, port = _task(host)
    with hold_port(cluster):
        assert all(is_listening(f"{other}:{port}") for other in reached)
        assert not any(is_listening(f"{other}:{port}") for other in not_reached)
    assert not is_listening(f"127.0.0.1:{port}")


def test_a_machine_without_ipv6_is_reached_by_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    cluster, port = _task(_ELSEWHERE)
    with hold_port(cluster) as listener:
        assert listener.family == socket.AF_INET
        assert is_listening(f"127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["127.0.0.1", _ELSEWHERE])
def test_a_port_that_another_process_uses_is_refused(host: str) -> None:
    cluster, port = _task(host)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UsageError, match=r"Address already in use\): give each task"),
        hold_port(cluster),
    ):
        raise AssertionError("the port is in use")


def test_all_tasks_are_looked_for_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each machine that is off delays the end of the wait by a second."""
    tasks = {f"worker-{index}": f"127.0.0.1:{index}" for index in range(3)}
    together = threading.Barrier(len(tasks))
    found = []

    def listening(address: str) -> bool:
        together.wait(timeout=10)
        found.append(address)
        return True

    monkeypatch.setattr(rendezvous, "is_listening", listening)
    wait_for_tasks(tasks, seconds=0)
    assert sorted(found) == sorted(tasks.values())


def test_a_task_connects_once_the_server_of_its_leader_runs() -> None:
    """A connection to the port that the leader holds fails, and gRPC waits a second."""
    cluster = Cluster(job="worker", index=1, addresses=local_cluster({"worker": 2}))
    leader, own = cluster.computing
    task = threading.Thread(target=wait_for_cluster, args=(cluster, 10))
    with socket.create_server(host_and_port(leader)) as server:
        server.settimeout(10)
        task.start()
        # First the task looks for the leader, then for its server.
        with server.accept()[0], server.accept()[0] as second:
            assert is_listening(own), "the leader must find this task until it serves"
            assert task.is_alive()
            # A gRPC server speaks first.
            second.send(b"SETTINGS")
            task.join(timeout=10)
    assert not task.is_alive()
    assert not is_listening(own)


def test_a_task_that_waits_accepts_any_number_of_connections() -> None:
    """The kernel keeps a few, and a cluster may have a thousand tasks."""
    cluster = Cluster(job="worker", addresses=local_cluster({"worker": 2}))
    task = threading.Thread(target=wait_for_cluster, args=(cluster, 30))
    threads = {*threading.enumerate()}
    with contextlib.ExitStack() as stack:
        late = stack.enter_context(bound_socket(cluster.computing[1], _TCP))
        task.start()
        while not is_listening(cluster.address):
            assert task.is_alive()
            time.sleep(0.01)
        place = host_and_port(cluster.address)
        for _ in range(100):
            peer = stack.enter_context(socket.create_connection(place, timeout=10))
        assert peer.recv(1) == b"", "each connection is accepted and closed"
        late.listen()
        task.join(timeout=10)
    assert {*threading.enumerate()} <= threads
    assert not is_listening(cluster.address)


def test_a_leader_waits_for_no_server() -> None:
    cluster = Cluster(job="worker", index=0, addresses=local_cluster({"worker": 2}))
    with socket.create_server(host_and_port(cluster.computing[1])):
        wait_for_cluster(cluster, seconds=10)
    assert not is_listening(cluster.address)


def test_all_tasks_are_asked_for_their_node_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = local_cluster({"worker": 4})
    together = threading.Barrier(3)

    def answer(own_name: str, task: str, address: str) -> node_info.Answer:
        together.wait(timeout=10)
        return node_info.Answer(problem=f"{task} says nothing to {own_name}")

    monkeypatch.setattr(node_info, "_ask", answer)
    cluster = Cluster(job="worker", addresses=addresses)
    found = node_info.exchange(cluster, {}, seconds=0.1)
    assert found["worker-3"].problem == "worker-3 says nothing to worker-0"
    assert len(found) == 3


@pytest.mark.parametrize("host", ["127.0.0.1", _ELSEWHERE])
def test_questions_arrive_by_udp_as_well(host: str) -> None:
    port = _free_port()
    with (
        bound_socket(f"{host}:{port}", socket.SOCK_DGRAM) as answering,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
    ):
        answering.settimeout(10)
        asking.sendto(b"question", ("127.0.0.1", port))
        assert answering.recv(100) == b"question"


def test_a_host_that_is_not_known_is_named_among_those_that_did_not_come() -> None:
    # RFC 2606 keeps this name from ever existing.
    tasks = {"worker-1": "node.invalid:1", "worker-2": f"127.0.0.1:{_free_port()}"}
    with pytest.raises(ClusterIncompleteError) as raised:
        wait_for_tasks(tasks, seconds=0.0)
    assert (
        "worker-1 at node.invalid:1 (a host name that is not known here), worker-2 at "
        f"{tasks['worker-2']} did not start"
    ) in str(raised.value)
