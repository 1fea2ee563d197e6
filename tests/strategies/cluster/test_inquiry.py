"""Tests of the questions that stalled tasks ask each other.

tests/fault_injection has real tasks.
"""

import json
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from strategies.cluster.activity import Sign
from strategies.cluster.inquiry import Report, ask_peers
from strategies.cluster.probes import PeerState
from strategies.cluster.spec import Cluster
from strategies.launcher.launch_config import local_cluster
from tests.processes import ROOT

# A program that acts as a task towards its peers: a server that sends the first byte,
# and the thread that answers questions.
_PEER = """
import socket, sys, threading, time
from strategies.cluster.inquiry import Report, answer_questions
from strategies.cluster.spec import parse_tf_config

cluster = parse_tf_config(sys.argv[1])
host, port = cluster.address.split(":")
server = socket.create_server((host, int(port)))

def speak():
    while True:
        server.accept()[0].sendall(b"0")

threading.Thread(target=speak, daemon=True).start()
report = Report(step=7, doing="train", idle_seconds=3.5)
answer_questions(cluster, lambda: report)

def read_for_ever():
    print("there", flush=True)
    with open(sys.argv[2]) as pipe:
        pipe.read()

read_for_ever()
"""


@pytest.fixture
def asking(tmp_path: pathlib.Path) -> Iterator[tuple[Cluster, Cluster]]:
    """Yields the clusters of a task that asks, and of its peer.

    The peer's main thread reads from a pipe.
    """
    addresses = local_cluster({"worker": 2})
    own, peer = (Cluster(job="worker", index=i, addresses=addresses) for i in (0, 1))
    path = tmp_path / "pipe"
    subprocess.run(["mkfifo", path], check=True)
    command = [sys.executable, "-c", _PEER, peer.tf_config(), str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        yield own, peer
        process.kill()


def test_a_peer_reports_its_step_and_where_its_main_thread_is(
    asking: tuple[Cluster, Cluster],
) -> None:
    own, peer = asking
    host, port = peer.address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # None of these messages ends the thread, and none gets an answer; nor does a
        # question that is shorter than an answer, or a question to another task.
        for message in (
            b"",
            b"[" * 1200,
            b"7".ljust(1200),
            b'{"to": "worker-1", "number": 1}',
            b"\xff" * 1201,
        ):
            sender.sendto(message, (host, int(port)))
        question = {"to": "worker-0", "number": "1"}
        sender.sendto(json.dumps(question).encode().ljust(1200), (host, int(port)))
        sender.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sender.recv(2000)
    report = ask_peers(own)["worker-1"]
    assert isinstance(report, Report)
    assert (report.step, report.doing, report.idle_seconds) == (7, "train", 3.5)
    assert report.sign is Sign.MAIN_THREAD
    assert report.where.startswith("read_for_ever (<string>:")


@pytest.mark.parametrize(
    "changes",
    [
        {"step": float("inf")},
        {"sign": "UNKNOWN"},
        {"to": "another question"},
        None,
        {"doing": "\x1b[2J"},
    ],
)
def test_an_answer_that_is_no_report_is_none(changes: dict[str, object] | None) -> None:
    """A report with control characters is accepted, and they are escaped."""
    addresses = local_cluster({"worker": 2})
    host, port = addresses["worker"][1].split(":")
    with (
        socket.create_server((host, int(port))) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answering,
    ):
        answering.bind((host, int(port)))

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"0")
            message, sender = answering.recvfrom(2000)
            number = json.loads(message)["number"]
            good = {"step": 1, "doing": "x", "idle_seconds": 1, "sign": "INPUT"}
            good |= {"where": "f", "to": number}
            answer = [1] if changes is None else {**good, **changes}
            answering.sendto(json.dumps(answer).encode(), sender)

        threading.Thread(target=answer, daemon=True).start()
        found = ask_peers(Cluster(job="worker", addresses=addresses))["worker-1"]
    if changes == {"doing": "\x1b[2J"}:
        assert found == Report(
            step=1, doing="\\x1b[2J", idle_seconds=1.0, sign=Sign.INPUT, where="f"
        )
    else:
        assert found is PeerState.SERVING
