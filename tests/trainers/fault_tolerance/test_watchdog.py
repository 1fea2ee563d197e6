"""The watchdog over a task's progress. Real tasks: tests/fault_injection."""

import concurrent.futures
import os
import socket
import threading
import time

import pytest
import tensorflow as tf

from strategies.cluster.activity import Sign
from strategies.cluster.inquiry import Report
from strategies.cluster.probes import is_listening, is_serving
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from tests.conformance.harness import Subject, in_one_process, small_config
from trainers.fault_tolerance import watchdog as watchdog_file
from trainers.fault_tolerance.watchdog import PROGRAM, Watchdog
from trainers.loop.timing import Clock


@pytest.mark.parametrize("strategy", in_one_process())
def test_steps_can_be_counted_from_another_thread(strategy: str) -> None:
    assembly = Subject.of(small_config(strategy=strategy)).assembly
    assembly.step.assign(7)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert int(pool.submit(assembly.step.numpy).result()) == 7


def test_a_task_that_stands_still_listens_but_does_not_answer() -> None:
    """Its system accepts connections for it. A server of gRPC speaks first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert is_listening(address)
        assert not is_serving(address)
        server.accept()[0].close()

        def answer() -> None:
            # The thread that gave up is still in the queue.
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"\0")

        thread = threading.Thread(target=answer)
        thread.start()
        assert is_serving(address)
        thread.join()
    assert not is_serving(address)


def test_the_beginning_and_the_end_of_every_piece_of_work_are_told() -> None:
    told: list[str | None] = []
    clock = Clock(told.append)
    with clock.measure("eval"):
        assert told == ["eval"]
        time.sleep(0)
    assert told == ["eval", None]


SECONDS = 0.3


def watchdog_of(cluster: Cluster) -> Watchdog:
    return Watchdog(SECONDS, cluster, Console(), lambda exit_code: None)


@pytest.mark.parametrize(
    ("kinds", "doing", "reads", "ends"),
    [
        ((), "startup", False, True),
        # A run begins with a note of that, and so does each `fit` of a program.
        (("startup",), "startup", False, True),
        (("startup", "trace", None), "running callbacks", False, True),
        # What a program does outside of `fit` may take any time.
        ((PROGRAM,), PROGRAM, False, False),
        ((PROGRAM, "startup"), "startup", False, True),
        # A resumed run reads all batches before its step within one call.
        (("train",), "train", True, False),
    ],
)
def test_a_task_ends_unless_it_makes_progress(
    kinds: tuple[str | None, ...],
    doing: str,
    reads: bool,
    ends: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, counter = threading.Event(), tf.Variable(0)
    monkeypatch.setattr(Watchdog, "_end", lambda self: ended.set())
    watchdog = watchdog_of(Cluster())
    watchdog.count(tf.Variable(0), counter)
    for kind in kinds:
        watchdog.note(kind)
    assert watchdog._report().doing == doing
    with watchdog:
        for _ in range(40):
            counter.assign_add(int(reads))
            if ended.wait(SECONDS / 10):
                break
    assert ended.is_set() == ends


@pytest.mark.parametrize(
    ("sign", "ends"), [(Sign.MAIN_THREAD, False), (Sign.NONE, True)]
)
def test_a_task_waits_for_one_that_runs_a_programs_own_code(
    sign: Sign, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that only waits, after its `fit`, delays nobody."""
    codes: list[int] = []
    answer = Report(doing=PROGRAM, sign=sign)
    monkeypatch.setattr(watchdog_file, "ask_peers", lambda _: {"worker-1": answer})
    monkeypatch.setattr(watchdog_file, "_SECONDS_TO_LEAVE", 0.1)
    monkeypatch.setattr(os, "_exit", codes.append)
    cluster = Cluster(
        job="worker", addresses={"worker": ("127.0.0.1:1", "127.0.0.1:2")}
    )
    watchdog_of(cluster)._end()
    assert codes == [ExitCode.PEER_LOST] * ends
