"""Trains on a Ray cluster: an actor for each task, which runs this project's command.

    python -m examples.on_ray --address=auto --num_workers=2 -- \
        --strategy=multi_worker_mirrored --run_dir=/shared/ray --train_steps=1000

Each actor runs `python -m trainers.main` with the arguments after `--`, in a separate
process on its node, with its task in TF_CONFIG. The project must have the same path on
every node. The chief, whose node Ray chooses, writes to `--run_dir`, and continues from
there on a disk that all nodes see. With `--num_ps` there is a chief as well, for
parameter_server.

Ray Train's TensorflowTrainer sets TF_CONFIG as well, and also TF_USE_LEGACY_KERAS=1,
so that `tf.keras` is Keras 2 from the package tf-keras (Ray 2.60,
python/ray/train/tensorflow/config.py, `_setup_tensorflow_environment`; why:
https://github.com/ray-project/ray/pull/64276). Here the processes are this project's
and train with Keras 3. They need Ray's core only: the extra `ray` of pyproject.toml.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import ray
from ray.util.placement_group import placement_group

from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.processes.parent import LAUNCHER_PID

_SECONDS_TO_BE_PLACED = 600.0
_SECONDS_BETWEEN_LOOKS = 0.5


class Task:
    """One task of the cluster, an actor on some node."""

    def __init__(self) -> None:
        # Reserves the port until the program opens it.
        self._port = socket.create_server(("", 0))
        self._program: subprocess.Popen[bytes] | None = None

    def address(self) -> str:
        """Returns the host:port at which other nodes reach this task."""
        return f"{ray.util.get_node_ip_address()}:{self._port.getsockname()[1]}"

    def run(self, tf_config: str, folder: str, arguments: Sequence[str]) -> int:
        """Runs the program as this task.

        Args:
          tf_config: Value of TF_CONFIG, which names the task.
          folder: Folder of the project.
          arguments: Arguments of the program.

        Returns:
          Exit code of the program, 128 + n after signal n.
        """
        # The program ends with this actor, however that ends.
        ours = {"TF_CONFIG": tf_config, LAUNCHER_PID: str(os.getpid())}
        self._port.close()
        self._program = subprocess.Popen(
            [sys.executable, "-m", "trainers.main", *arguments],
            cwd=folder,
            env={**os.environ, **ours},
            stdin=subprocess.DEVNULL,
        )
        code = self._program.wait()
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Passes a signal on."""
        if self._program is not None:
            self._program.send_signal(number)


def train(
    num_tasks: Mapping[str, int],
    resources: Mapping[str, float],
    arguments: Sequence[str],
) -> int:
    """Runs the tasks of a cluster to their end.

    Args:
      num_tasks: Number of tasks by job.
      resources: Resources of each task on its node, by Ray's names.
      arguments: Arguments of the program.

    Returns:
      The highest exit code of all tasks. After 138 and 143 the same command continues
      the run, if `--resume=auto` is among the arguments.

    Raises:
      TimeoutError: The nodes do not have these resources.
    """
    names = [(job, i) for job, number in num_tasks.items() for i in range(number)]
    # All or none: a task waits for the others.
    group = placement_group([dict(resources)] * len(names), strategy="SPREAD")
    if not group.wait(_SECONDS_TO_BE_PLACED):
        raise TimeoutError(f"no place for {len(names)} tasks with {resources} each")
    options = {"num_cpus": resources["CPU"], "num_gpus": resources.get("GPU", 0)}
    # One thread runs the program, and another passes signals on to it.
    actor = ray.remote(max_concurrency=2, placement_group=group, **options)(Task)
    tasks = [actor.remote() for _ in names]
    found = ray.get([task.address.remote() for task in tasks])
    addresses = {
        job: tuple(a for (j, _), a in zip(names, found, strict=True) if j == job)
        for job in num_tasks
    }
    runs = []
    for task, (job, index) in zip(tasks, names, strict=True):
        place = Cluster(job=job, index=index, addresses=addresses)
        given = [*arguments, "--allow_remote_hosts"]
        runs.append(task.run.remote(place.tf_config(), os.getcwd(), given))
    return _highest_exit_code(tasks, runs)


def _highest_exit_code(tasks: Sequence, runs: Sequence) -> int:
    """Waits for all tasks, and passes SIGINT and SIGTERM on to them meanwhile."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: received.append(got))
    codes, running = [0], list(runs)
    while running:
        ended, running = ray.wait(running, timeout=_SECONDS_BETWEEN_LOOKS)
        for run in ended:
            try:
                codes.append(ray.get(run))
            except ray.exceptions.RayActorError:
                codes.append(PeerLostError.exit_code)  # Its node was lost.
        while received:
            signal_number = received.pop()
            for task in tasks:
                task.send.remote(signal_number)
    return max(codes)


def main() -> int:
    """Reads the command line, and connects to Ray or starts it on this machine."""
    parser = argparse.ArgumentParser(description="Trains on a Ray cluster.")
    add = parser.add_argument
    add("--address", help="Address of the cluster. By default one is started here.")
    add("--num_workers", type=int, default=2, help="Number of workers.")
    add("--num_ps", type=int, default=0, help="Parameter servers; a chief is added.")
    add("--cpus", type=float, default=1.0, help="Cores of each task.")
    add("--gpus", type=float, default=0.0, help="GPUs of each task.")
    add("arguments", nargs="*", help="Arguments of trainers.main, after --.")
    given = parser.parse_args()
    num_tasks = {"worker": given.num_workers}
    if given.num_ps:
        num_tasks |= {"chief": 1, "ps": given.num_ps}
    resources = {"CPU": given.cpus} | ({"GPU": given.gpus} if given.gpus else {})
    ray.init(address=given.address, include_dashboard=False)
    try:
        return train(num_tasks, resources, given.arguments)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
