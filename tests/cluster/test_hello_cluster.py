"""Tests of the hello cluster: two workers and the variables of a parameter server."""

import functools
import json
import pathlib
import re
import signal
import sys

import psutil
import pytest

from strategies.cluster.probes import is_listening
from strategies.cluster.spec import Cluster
from strategies.hello_cluster.__main__ import main
from strategies.launcher.launch_config import Plan
from tests import processes
from tests.cluster.test_confinement import possible
from tests.markers import further
from trainers.cli.tensorflow_setup import variables_of_import
from trainers.config.config import Config

BEGIN = [sys.executable, "-m", "strategies.hello_cluster"]


def test_one_worker_prints_12_and_the_other_40(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tasks are forked: the imports of a new task take four seconds of a core."""
    forking = functools.partial(Plan, starter=processes.templates().starter)
    monkeypatch.setattr("strategies.hello_cluster.__main__.Plan", forking)
    # A template forks processes with the environment that it has.
    of_clusters = Config().replace(strategy="parameter_server")
    variables = {**processes.environment(), **variables_of_import(of_clusters)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["hello_cluster"]) == 0
    assert_prints_12_and_40(*capfd.readouterr())


@pytest.mark.exhaustive
def test_the_command_starts_new_processes(tmp_path: pathlib.Path) -> None:
    with processes.started(folder=tmp_path, begin=BEGIN) as process:
        done = processes.end_of(process)
    assert done.returncode == 0
    assert_prints_12_and_40(done.stdout, done.stderr)
    assert list(tmp_path.iterdir()) == []


def assert_prints_12_and_40(stdout: str, stderr: str) -> None:
    # Where no private network is possible, a warning says so.
    assert stderr == "" or not possible(())
    holds, *others = stdout.splitlines()
    address = re.fullmatch(
        r"ps-0      holds a = 3 and b = 4 at (127\.0\.0\.1:\d+)", holds
    )
    assert address is not None, holds
    assert others == [
        "worker-0  a * b = 12",
        "worker-1  sets a = 10: a * b = 40",
        "ended     ps-0, worker-0, worker-1; their ports are free",
    ]


# The launcher of this program is that of a training, which other tests stop.
@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGKILL, -signal.SIGKILL), further(signal.SIGINT, 130)],
)
def test_tasks_end_with_the_launcher_however_it_ends(
    number: signal.Signals, exit_code: int, tmp_path: pathlib.Path
) -> None:
    """One task is suspended meanwhile, so that the others wait for it."""
    with processes.started(folder=tmp_path, begin=BEGIN) as process:
        launcher = psutil.Process(process.pid)
        processes.wait_until(
            lambda: len(launcher.children()) == 3, "its tasks", process
        )
        tasks = launcher.children()
        # Before it loads TensorFlow, a task asks the kernel to end it with its
        # launcher.
        processes.wait_until(
            lambda: all(map(is_loading_tensorflow, tasks)), "TensorFlow", process
        )
        # A task that has just been forked still has the launcher's variables.
        cluster = json.loads(tasks[0].environ()["TF_CONFIG"])["cluster"]
        processes.task_of(process.pid, "worker", 1).suspend()
        process.send_signal(number)
        assert process.wait(processes.PATIENCE_SECONDS) == exit_code
        # The tasks end within a second; a busy machine may need more.
        _, left = psutil.wait_procs(tasks, timeout=30)
        for task in left:
            task.kill()
    assert left == []
    assert not any(map(is_listening, [*cluster["ps"], *cluster["worker"]]))


def is_loading_tensorflow(task: psutil.Process) -> bool:
    return any("tensorflow" in part.path for part in task.memory_maps())


def tf_config(num_workers: int, num_ps: int) -> str:
    addresses = {
        "ps": tuple(f"127.0.0.1:{9000 + n}" for n in range(num_ps)),
        "worker": tuple(f"127.0.0.1:{9100 + n}" for n in range(num_workers)),
    }
    return Cluster(
        job="worker", addresses={j: a for j, a in addresses.items() if a}
    ).tf_config()


@pytest.mark.parametrize(
    ("arguments", "cluster", "named"),
    [
        (["--num_workers=3"], None, "'--num_workers=3' is not accepted"),
        ([], "{", "TF_CONFIG is not JSON"),
        ([], tf_config(3, 1), "cluster.worker lists 3 tasks: this program has 2"),
        ([], tf_config(2, 0), "cluster.ps is missing"),
        ([], tf_config(2, 2), "cluster.ps lists 2 tasks: this program has 1"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str],
    cluster: str | None,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if cluster is not None:
        monkeypatch.setenv("TF_CONFIG", cluster)
    assert main(["hello_cluster", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert named in line


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hello_cluster", "--help"]) == 0
    assert "prints 12" in capsys.readouterr().out
