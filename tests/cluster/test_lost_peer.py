"""Tests of how soon the other workers know that a worker died before a sum."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from strategies.launcher.launch_config import local_cluster
from tests import processes

pytestmark = pytest.mark.slow

# Every worker says that it has the first sum. The test kills worker 1 then, because a
# worker that ended by itself could take parts of the first sum with it that others have
# not read yet. The others wait until it is gone, and print the error of their own
# second sum. Worker 0 stays until the test closes its input: it leads the coordination
# service, and its end would abort the others. `whose` is "ours" for the project's sums
# and "theirs" for TensorFlow's.
_SUM = """
import json
import os
import sys
import time

import tensorflow as tf
from tensorflow.python.eager import context

from strategies.cluster.probes import is_listening
from strategies.inner_loop.replicated import sum_by_type

whose, size, dtype, heartbeat_milliseconds = sys.argv[1:]
cluster = json.loads(os.environ["TF_CONFIG"])
context.context().configure_coordination_service(
    service_type="standalone",
    service_leader="/job:worker/replica:0/task:0",
    heartbeat_timeout_in_ms=int(heartbeat_milliseconds),
)
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def on_each_replica():
    context = tf.distribute.get_replica_context()
    value = tf.ones([int(size)], dtype)
    if whose == "theirs":
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    return sum_by_type(context, [value])[0]


@tf.function(autograph=False)
def run():
    return strategy.run(on_each_replica)


total = strategy.experimental_local_results(run())[0].numpy().tolist()
assert total == [strategy.num_replicas_in_sync] * int(size), total
print("summed", flush=True)
if cluster["task"]["index"] == 1:
    sys.stdin.read()
while is_listening(cluster["cluster"]["worker"][1]):
    time.sleep(0.05)
try:
    run()
except tf.errors.OpError as error:
    print(repr(str(error)), flush=True)
sys.stdin.read()
# A normal exit would wait for the others.
os._exit(0)
"""


def _errors_of_survivors(whose: str, size: int, dtype: str, workers: int) -> list[str]:
    # The project's sums do not wait for the heartbeat, so a long one shows it.
    milliseconds = {"theirs": 4_000, "ours": 60_000}[whose]
    words = [_SUM, whose, str(size), dtype, str(milliseconds)]
    addresses = local_cluster({"worker": workers})
    started = []
    for index in range(workers):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": addresses, "task": task})
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", *words],
                cwd=processes.ROOT,
                env={**os.environ, "TF_CONFIG": config},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        assert [_line_of(process) for process in started] == ["summed"] * workers
        started[1].kill()
        return [_line_of(p) for index, p in enumerate(started) if index != 1]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _line_of(process: subprocess.Popen[str]) -> str:
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
