"""The watchdog over a task's progress. Real tasks: tests/fault_injection."""

from __future__ import annotations

import concurrent.futures
import socket
import threading
import time

import pytest

from strategies.cluster.probes import is_listening, is_serving
from tests.conformance.harness import Subject, in_one_process, small_config
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
    told: list[str] = []
    clock = Clock(told.append)
    with clock.measure("eval"):
        assert told == ["eval"]
        time.sleep(0)
    assert told == ["eval", "eval"]
