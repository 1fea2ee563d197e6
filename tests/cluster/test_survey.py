"""Checks that tasks exchange descriptions of their machines in spite of strangers."""

import contextlib
import json
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strategies.cluster import node_info
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.launcher.launch_config import local_cluster
from strategies.processes.forked_process import Process
from tests import processes
from tests.markers import further
from trainers.config.config import Config
from trainers.modes.node_comparison import collect_node_info, differences

# An exchange takes a fraction of a second; a busy machine may need far more.
SECONDS = 60.0


def worker(index: int, addresses: dict[str, tuple[str, ...]]) -> Cluster:
    return Cluster(job="worker", index=index, addresses=addresses)


def test_every_task_gets_the_information_of_every_other() -> None:
    addresses = local_cluster({"worker": 3})
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(
                lambda i: node_info.exchange(
                    worker(i, addresses), {"rank": i}, SECONDS
                ),
                range(3),
            )
        )
    for index, answers in enumerate(found):
        received = {task: answer.node_info for task, answer in answers.items()}
        assert received == {
            f"worker-{other}": {"rank": other, "task": f"worker-{other}"}
            for other in range(3)
            if other != index
        }


def test_a_task_that_is_not_there_is_told_from_a_name_that_is_unknown() -> None:
    addresses = local_cluster({"worker": 2})
    # RFC 2606 keeps this name from ever existing.
    cluster = worker(0, {"worker": (*addresses["worker"], "host.invalid:1")})
    answers = node_info.exchange(cluster, {}, seconds=0.1)
    assert answers["worker-1"].problem == "nothing listens there"
    assert answers["worker-2"].problem == "the host name host.invalid is not known here"


def test_an_address_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = worker(0, {"worker": (address, "127.0.0.1:1")})
        with pytest.raises(UsageError, match=f"address {address} of worker-0 cannot"):
            node_info.exchange(cluster, {}, seconds=0.1)


@contextlib.contextmanager
def stranger(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yields the address of another program that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def trickle(connection: socket.socket) -> None:
    """Sends a byte at a time, for longer than a message may take."""
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.1)


def flood(connection: socket.socket) -> None:
    """Sends more than a message may have, and no end of it until the other hangs up."""
    connection.sendall(b"[" * (1 << 17))
    while connection.recv(4096):
        pass


STRANGERS: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "speaks HTTP": (
        lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n"),
        "something else uses that port",
    ),
    "hangs up": (lambda c: None, "something else uses that port"),
    "says too much": (flood, "something else uses that port"),
    "nests deeply": (
        lambda c: c.sendall(b"[" * 60_000 + b"\n"),
        "something else uses that port",
    ),
    "says a list": (lambda c: c.sendall(b"[]\n"), "something else uses that port"),
    "is another task": (
        lambda c: c.sendall(b'{"task": "worker-7"}\n'),
        "another task or program answers there",
    ),
    "trickles": (trickle, "no answer: a firewall, or a host that is down"),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_a_stranger_is_not_taken_for_a_task(case: str) -> None:
    answer, expected = STRANGERS[case]
    (own,) = local_cluster({"worker": 1})["worker"]
    with stranger(answer) as address:
        cluster = worker(0, {"worker": (own, address)})
        (found,) = node_info.exchange(cluster, {}, seconds=0.1).values()
    assert found == node_info.Answer(problem=expected)


def test_strangers_do_not_keep_tasks_from_meeting() -> None:
    addresses = local_cluster({"worker": 2})
    host, _, port = addresses["worker"][0].rpartition(":")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(node_info.exchange, worker(0, addresses), {"n": 0}, SECONDS)
        for message in (b"\n", b"GET / HTTP/1.1\r\n", b"[" * 60_000 + b"\n", b""):
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                with contextlib.suppress(ConnectionRefusedError):
                    with socket.create_connection((host, int(port))) as connection:
                        connection.sendall(message)
                    break
        second = node_info.exchange(worker(1, addresses), {"n": 1}, SECONDS)
        assert second["worker-0"].node_info == {"n": 0, "task": "worker-0"}
        assert first.result()["worker-1"].node_info == {"n": 1, "task": "worker-1"}


def test_information_of_nodes_is_compared() -> None:
    ours = json.loads(json.dumps(collect_node_info(Config())))
    assert list(differences("worker-1", ours, ours)) == []
    theirs = {
        "versions": {**ours["versions"], "tensorflow": "2.20.0", "numpy": "2.0.0"},
        "source": "other",
        "settings": {**ours["settings"], "seed": 1, "verbose": True},
    }
    found = list(differences("worker-1", theirs, ours))
    assert [kind for kind, _ in found] == ["problem", "warning", "warning", "problem"]
    assert "worker-1 has tensorflow 2.20.0" in found[0][1]
    assert "worker-1 has numpy 2.0.0" in found[1][1]
    assert "another state" in found[2][1]
    assert "worker-1 was given --seed=1 (here 0):" in found[3][1]


@pytest.mark.parametrize("information", [{}, {"versions": 1, "settings": []}])
def test_information_may_hold_anything(information: dict[str, object]) -> None:
    assert list(differences("worker-1", information, collect_node_info(Config())))


def doctor(
    index: int, addresses: dict[str, tuple[str, ...]], folder: pathlib.Path, *flags: str
) -> Process:
    return processes.start(
        *("--mode=doctor", "--strategy=multi_worker_mirrored", "--run_dir=run"),
        *flags,
        folder=folder,
        TF_CONFIG=worker(index, addresses).tf_config(),
    )


@pytest.mark.cluster
@pytest.mark.parametrize("seed", [further(0), 1])
def test_doctors_of_a_cluster_meet_and_compare(
    seed: int, tmp_path: pathlib.Path
) -> None:
    addresses = local_cluster({"worker": 2})
    tasks = [
        doctor(0, addresses, tmp_path),
        doctor(1, addresses, tmp_path, f"--seed={seed}"),
    ]
    ends = processes.ends_of(tasks)
    assert [end.returncode for end in ends] == [2 * seed] * 2, [e.stdout for e in ends]
    for own, other in ((0, 1), (1, 0)):
        lines = ends[own].stdout.splitlines()
        assert (
            f"          worker-{own}   {addresses['worker'][own]}  this task" in lines
        )
        reached = f"          worker-{other}   {addresses['worker'][other]}  reached: "
        assert any(line.startswith(reached) for line in lines)
        problems = [line for line in lines if line.startswith("problem: ")]
        assert problems == seed * [
            f"problem: worker-{other} was given --seed={other} (here {own}): give "
            "every task the same flags."
        ]
    assert list(tmp_path.iterdir()) == []
