"""Checks that tasks of one command divide GPUs, and have the threads of their flags."""

import json
import os
import pathlib
import sys

import pytest

from strategies.common.errors import UsageError
from strategies.devices.gpu import divide, visible_gpus
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher
from tests.processes import run, run_module

# A task that writes the GPUs that the launcher gave it to a file.
RECORD_GPUS = """
import json, os, pathlib, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
resources = {
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
}
file = pathlib.Path(sys.argv[1], f"{task['type']}-{task['index']}")
file.write_text(json.dumps(resources))
"""


def resources_of_tasks(
    folder: pathlib.Path, num_tasks: dict[str, int], gpus: tuple[str, ...] = ()
) -> dict[str, dict[str, object]]:
    """Returns the resources that a launcher gives each task."""
    plan = Plan(
        command=[sys.executable, "-c", RECORD_GPUS, str(folder)],
        addresses=local_cluster(num_tasks),
        server_jobs=(),
        logs=folder / "logs",
        gpus=gpus,
    )
    said: list[str] = []
    assert Launcher(plan, said.append).run() == 0, said
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_gpus_are_divided_among_the_tasks_that_compute(tmp_path: pathlib.Path) -> None:
    resources = resources_of_tasks(
        tmp_path, {"chief": 1, "worker": 2, "ps": 1}, gpus=("0", "GPU-a", "2", "3", "4")
    )
    assert {task: given["gpus"] for task, given in resources.items()} == {
        "chief-0": "",
        "worker-0": "0,GPU-a",
        "worker-1": "2,3",
        "ps-0": "",
    }


def test_without_gpus_nothing_is_said_of_them(tmp_path: pathlib.Path) -> None:
    resources = resources_of_tasks(tmp_path, {"worker": 1})
    assert resources["worker-0"]["gpus"] == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_fewer_gpus_than_tasks_are_refused() -> None:
    assert divide((), 3) == [(), (), ()]
    with pytest.raises(UsageError, match="--num_workers=3 needs a GPU for each, this"):
        divide(("0", "1"), 3)


def test_gpus_are_those_of_the_variable_or_else_of_the_driver(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ("0", "1")
    assert visible_gpus({}, tmp_path / "none") == ()
    for listed, expected in {
        "1": ("1",),
        "GPU-a, 0": ("GPU-a", "0"),
        "": (),
        "-1": (),
        "0,-1,1": ("0",),
    }.items():
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == expected


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_a_number_of_replicas_that_nothing_would_use_is_refused(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    run_dir = tmp_path / "run"
    done = run(f"--strategy={strategy}", "--num_replicas=2", f"--run_dir={run_dir}")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"--num_replicas=2 is not used by --strategy={strategy}" in line
    assert not run_dir.exists()


def test_threads_are_set_before_tensorflow_starts(tmp_path: pathlib.Path) -> None:
    program = """
import tensorflow as tf
from trainers.cli import flags, tensorflow_setup as runtime
threads = {"intra_op_threads": 3, "inter_op_threads": 5}
config = flags.parse(["", *(f"--set=threads.{n}={k}" for n, k in threads.items())])
runtime.load_tensorflow(config)
from strategies.ps.server import server_threads
tf.zeros([])
threading = tf.config.threading
print(
    threading.get_intra_op_parallelism_threads(),
    threading.get_inter_op_parallelism_threads(),
    server_threads().intra_op_parallelism_threads,
    server_threads().inter_op_parallelism_threads,
)
"""
    (tmp_path / "prints_threads.py").write_text(program)
    done = run_module("prints_threads", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "5", "3", "5"]
