"""Checks that a start-up that waits in vain ends, however busy its process is."""

import ctypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from strategies.cluster import watchdog_process
from strategies.cluster.rendezvous import accepting
from strategies.cluster.spec import Cluster
from strategies.cluster.startup_watchdog import StartUpWatchdog
from strategies.cluster.watchdog_process import POLL_SECONDS
from strategies.common.signals import PASSED_ON
from tests.processes import ROOT

# A program with a thread that blocks no signals, as those of NumPy. It begins to watch
# for a peer, ignores SIGTERM, as TensorFlow's handler does, forks a process that lives
# for a while, as readers of data do, prints a line, and then runs {busy}.
_WATCHING = """
import ctypes, os, sys, threading, time
from strategies.cluster import startup_watchdog as startup_watch
from strategies.cluster.spec import Cluster

startup_watch._SECONDS_UNTIL_LOST = 0.5
startup_watch._SECONDS_UNTIL_ENDED_FROM_OUTSIDE = 1.0
addresses = {"worker": ("127.0.0.1:1", sys.argv[1])}
watch = startup_watch.StartUpWatchdog(Cluster(job="worker", addresses=addresses))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

def start():
    ctypes.CDLL(None).signal(15, 1)
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(8)
        os._exit(0)
    print("watching", flush=True)
    {busy}

watch.call(start)
"""
SLEEPS = "time.sleep(60)"
# TensorFlow connects to the leader in C, and holds Python's lock meanwhile.
HOLDS_THE_LOCK = "ctypes.PyDLL(None).sleep(60)"
# This process has started and needs the watch no longer.
HAS_STARTED = "watch.end(); time.sleep(60)"


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        # A gRPC server speaks first.
        accepting(listener, lambda connection: connection.send(b"SETTINGS")),
    ):
        yield listener


def watching(busy: str, peer: socket.socket) -> subprocess.Popen[str]:
    """Starts a process, and returns it once it watches for the peer."""
    address = f"127.0.0.1:{peer.getsockname()[1]}"
    # Python 3.12 warns of threads beside a fork.
    python = (sys.executable, "-W", "ignore::DeprecationWarning")
    process = subprocess.Popen(
        [*python, "-c", _WATCHING.replace("{busy}", busy), address],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"
    return process


def watchdogs_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [c for c in children if watchdog_process.__name__ in c.cmdline()]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns the exit code as a shell shows it, and the standard error."""
    _, errors = process.communicate(timeout=30)
    code = process.returncode
    return 128 - code if code < 0 else code, errors


@pytest.mark.parametrize("busy", [SLEEPS, HOLDS_THE_LOCK])
def test_a_peer_that_is_gone_is_named_and_the_process_ends(
    busy: str, peer: socket.socket
) -> None:
    process = watching(busy, peer)
    port = peer.getsockname()[1]
    peer.close()
    code, errors = ended(process)
    assert code == 138
    assert errors.splitlines() == [
        f"error: worker-1 at 127.0.0.1:{port} was lost: start all tasks again, with "
        "--resume=auto to continue the run."
    ]


def test_a_peer_that_is_suspended_is_named_and_the_process_ends() -> None:
    """The kernel accepts connections for it, and the leader holds Python's lock."""
    with socket.create_server(("127.0.0.1", 0)) as suspended:
        process = watching(HOLDS_THE_LOCK, suspended)
        code, errors = ended(process)
    assert code == 138
    assert "error: worker-1 at 127.0.0.1:" in errors
    assert " does not answer: start all tasks again" in errors


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        # A launcher reads this end as its own request.
        (PASSED_ON[signal.SIGTERM], 128 + PASSED_ON[signal.SIGTERM]),
    ],
)
def test_a_signal_ends_a_start_up_at_once(
    number: int, code: int, peer: socket.socket
) -> None:
    process = watching(SLEEPS, peer)
    process.send_signal(number)
    assert ended(process) == (code, "")


@pytest.mark.parametrize("busy", [SLEEPS, HOLDS_THE_LOCK])
def test_nothing_happens_while_all_are_there(busy: str, peer: socket.socket) -> None:
    process = watching(busy, peer)
    try:
        time.sleep(2)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_afterwards_nobody_watches_any_more(peer: socket.socket) -> None:
    process = watching(HAS_STARTED, peer)
    try:
        peer.close()
        time.sleep(2)
        assert process.poll() is None
        assert watchdogs_of(process) == []
    finally:
        process.kill()
        process.communicate()


def test_who_watches_from_outside_goes_with_the_process(peer: socket.socket) -> None:
    process = watching(SLEEPS, peer)
    watchdogs = watchdogs_of(process)
    assert len(watchdogs) == 1
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(watchdogs, timeout=5)
    assert alive == []


def test_signals_have_their_handlers_again_and_are_not_blocked() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    watch = StartUpWatchdog(Cluster(job="worker", addresses={"worker": ("[::1]:1",)}))
    try:
        # TensorFlow replaces the handler in the same way.
        watch.call(lambda: ctypes.CDLL(None).signal(signal.SIGTERM, signal.SIG_IGN))
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with pytest.raises(ZeroDivisionError):
            watch.call(lambda: 1 // 0)
    finally:
        watch.end()
        signal.signal(signal.SIGTERM, before)


def test_the_one_outside_needs_little() -> None:
    """Every task starts this process while TensorFlow starts."""
    code = "import sys, strategies.cluster.watchdog_process; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True
    ).stdout.split()
    assert not {b"tensorflow", b"numpy", b"psutil"} & set(loaded)


def test_a_process_that_was_suspended_is_not_asked_to_stop(peer: socket.socket) -> None:
    """CPython's `signal.sigtimedwait` returns then, with a number that is no signal."""
    process = watching(SLEEPS, peer)
    process.send_signal(signal.SIGSTOP)
    # The process is stopped for longer than the watch waits between two looks.
    time.sleep(2 * POLL_SECONDS)
    process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2 * POLL_SECONDS)
    process.kill()
    process.communicate()
