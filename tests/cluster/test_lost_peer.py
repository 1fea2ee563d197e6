"""Tests of how soon the other workers know that a worker died before a sum."""

import json
import sys

import pytest

from strategies.launcher.launch_config import local_cluster
from strategies.processes.forked_process import Process
from tests import processes

pytestmark = pytest.mark.slow

_WORKER = "tests.cluster.summing_worker"


def _errors_of_survivors(whose: str, size: int, dtype: str, workers: int) -> list[str]:
    # The project's sums do not wait for the heartbeat, so a long one shows it.
    milliseconds = {"theirs": 4_000, "ours": 60_000}[whose]
    words = [sys.executable, "-m", _WORKER, whose, str(size), dtype, str(milliseconds)]
    addresses = local_cluster({"worker": workers})
    started = []
    for index in range(workers):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": addresses, "task": task})
        started.append(
            processes.start_words(words, processes.ROOT, {"TF_CONFIG": config})
        )
    try:
        assert [_line_of(process) for process in started] == ["summed"] * workers
        started[1].kill()
        return [_line_of(p) for index, p in enumerate(started) if index != 1]
    finally:
        for process in started:
            process.kill()
            processes.outputs_of(process)


def _line_of(process: Process) -> str:
    """Returns the next line that a process prints, empty if it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


# TensorFlow gives the parts of these sizes to only one or two of the workers.
@pytest.mark.parametrize(
    ("size", "dtype", "workers"), [(15, "float64", 2), (1, "float32", 3)]
)
def test_all_others_know_at_once(size: int, dtype: str, workers: int) -> None:
    for error in _errors_of_survivors("ours", size, dtype, workers):
        assert "aborted" in error
        assert "heartbeat" not in error


def test_without_a_part_for_each_worker_they_wait_for_its_heartbeat() -> None:
    """This is why `size_with_parts_for_all` appends zeros to small sums."""
    (error,) = _errors_of_survivors("theirs", 15, "float64", 2)
    assert "heartbeat" in error
