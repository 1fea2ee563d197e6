"""Tests of the files by which a chief tells its servers how the run has ended."""

import contextlib
import pathlib
import socket
import time
from typing import Any

import pytest
import tensorflow as tf

from strategies import parameter_server
from strategies.cluster.probes import is_serving
from strategies.cluster.spec import Cluster
from strategies.parameter_server import ParameterServer
from tests.cluster.tasks import cluster
from trainers.run_dir.run_dir import RunDir

pytestmark = pytest.mark.cluster

# The exit code of a refused run, after which the folder must not exist.
REFUSED = 2


def test_a_server_removes_the_folder_of_a_refused_run_after_the_chief_is_gone(
    tmp_path: pathlib.Path,
) -> None:
    """The chief may write the file of another server into the folder until then.

    A chief ended with 1, because a server had removed the folder after TensorFlow made
    it and before TensorFlow opened the file.
    """
    others = ("chief-0", "worker-0")
    flags = ("--strategy=parameter_server", "--model=mlp")
    num_tasks = {"chief": 1, "worker": 1, "ps": 1}
    with (
        cluster(tmp_path, num_tasks, *flags, absent=others) as tasks,
        contextlib.ExitStack() as listening,
    ):
        for task in others:
            host, _, port = tasks.address(task).rpartition(":")
            # The kernel accepts so many connections of the server, which asks often.
            taken = socket.create_server((host, int(port)), backlog=1000)
            listening.enter_context(taken)
        own = Cluster(job="ps", addresses=tasks.addresses)
        # It first removes a file of an earlier run.
        tasks.wait_until(lambda: is_serving(own.address), "it serves")
        path = pathlib.Path(RunDir(tasks.run_dir).shutdown_path(own, own.task))
        path.parent.mkdir(parents=True)
        path.write_text(str(REFUSED), encoding="utf-8")
        tasks.wait_until(lambda: not path.exists(), "it reads its file")
        # The server would have removed the folder at once.
        time.sleep(0.5)
        assert path.parent.is_dir()
        listening.close()
        server = tasks.started["ps-0"]
        assert server.exit_code() == REFUSED, server.error_lines()
        assert not tasks.run_dir.exists()


def test_a_server_whose_disk_is_full_keeps_no_other_one_from_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy: Any = object.__new__(ParameterServer)
    addresses = {"worker": ("a:1", "b:1"), "ps": ("c:1",)}
    strategy._cluster = Cluster(job="chief", addresses=addresses)
    told: list[str] = []

    def write(path: str, text: str) -> None:
        if path == "worker-0":
            message = f"{path}; No space left on device"
            raise tf.errors.ResourceExhaustedError(None, None, message)
        told.append(path)

    monkeypatch.setattr(parameter_server, "is_serving", lambda address: True)
    monkeypatch.setattr(tf.io, "write_file", write)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="worker-0; No space"):
        strategy.shutdown_servers(lambda task: task, 0)
    assert told == ["worker-1", "ps-0"]
