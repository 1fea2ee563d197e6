"""Trains on a Ray cluster: an actor for each task, which runs this project's own command.

    python -m examples.on_ray --num_workers=2 --address=auto -- \\
        --strategy=multi_worker_mirrored --run_dir=/shared/runs/ray --train_steps=1000

What comes after `--` is handed on. Each actor is on the node that Ray gives it, finds a
free port there and runs `python -m trainers.main` with TF_CONFIG as its task; all need
one run folder, which is on a disk that every node sees. `--strategy=parameter_server`
takes a chief and `--num_ps` servers besides the workers.

Ray Train's own TensorflowTrainer sets TF_CONFIG as well, and TF_USE_LEGACY_KERAS=1 beside
it: its workers train with Keras 2, from the package tf-keras (Ray 2.60,
python/ray/train/tensorflow/config.py, `_setup_tensorflow_environment`;
https://github.com/ray-project/ray/pull/64276). Here a task is a process that Ray has set
nothing for, with Keras 3. Needs `ray`, the extra of the same name in pyproject.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import ray

# What Ray sets for its own processes that changes how TensorFlow computes. A worker that
# Ray has given no GPU sees none; OMP_NUM_THREADS is 1 for one that has one core.
_OF_RAY = ("OMP_NUM_THREADS", "TF_USE_LEGACY_KERAS")


@ray.remote
class Task:
    """One task of the cluster, on whichever node it has been put."""

    def __init__(self) -> None:
        # Held until the program takes the port itself.
        self._port = socket.socket()
        self._port.bind(("", 0))

    def address(self) -> str:
        """Its host:port, as other nodes reach it."""
        return f"{ray.util.get_node_ip_address()}:{self._port.getsockname()[1]}"

    def run(self, tf_config: str, folder: str, arguments: Sequence[str]) -> int:
        """Runs the program as this task, and returns its exit code.

        Args:
          tf_config: which task it is, in JSON.
          folder: where the project is.
          arguments: of the program.
        """
        ours = {k: v for k, v in os.environ.items() if k not in _OF_RAY}
        self._port.close()
        return subprocess.run(
            [sys.executable, "-m", "trainers.main", *arguments],
            cwd=folder,
            env={**ours, "TF_CONFIG": tf_config},
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode


def train(
    num_tasks: dict[str, int], arguments: Sequence[str], cpus: float, gpus: float
) -> int:
    """Runs the tasks of one cluster to their end.

    Args:
      num_tasks: by job.
      arguments: of the program.
      cpus: of each task.
      gpus: of each task that computes.

    Returns:
      The highest exit code of all. Above 128 the same command, with --resume=auto,
      goes on.
    """
    computing = ray.remote(num_cpus=cpus, num_gpus=gpus)
    del computing
    names = [(job, i) for job, number in num_tasks.items() for i in range(number)]
    tasks = [
        Task.options(num_cpus=cpus, num_gpus=gpus if job == "worker" else 0).remote()
        for job, _ in names
    ]
    addresses = ray.get([task.address.remote() for task in tasks])
    cluster: dict[str, list[str]] = {job: [] for job in num_tasks}
    for (job, _), address in zip(names, addresses, strict=True):
        cluster[job].append(address)
    running = [
        task.run.remote(
            json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}),
            os.getcwd(),
            [*arguments, "--allow_remote_hosts"],
        )
        for task, (job, index) in zip(tasks, names, strict=True)
    ]
    return max(ray.get(running))


def main() -> int:
    """Reads the command line, and connects to Ray."""
    parser = argparse.ArgumentParser(description="Trains on a Ray cluster.")
    parser.add_argument("--address", help="of the cluster; without, one on this machine")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--num_ps", type=int, default=0, help="0: all are workers")
    parser.add_argument("--cpus", type=float, default=1, help="of each task")
    parser.add_argument("--gpus", type=float, default=0, help="of each worker")
    parser.add_argument("arguments", nargs="*", help="of trainers.main, after --")
    given = parser.parse_args()
    num_tasks = {"worker": given.num_workers}
    if given.num_ps:
        num_tasks = {"chief": 1, **num_tasks, "ps": given.num_ps}
    ray.init(address=given.address, include_dashboard=False)
    try:
        return train(num_tasks, given.arguments, given.cpus, given.gpus)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
