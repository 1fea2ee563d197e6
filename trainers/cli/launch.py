"""Starts a cluster on this machine: the same command line once for each task."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import psutil

from strategies import registry
from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.config import DEFAULT_NUM_WORKERS
from strategies.devices.gpu import divide, visible_gpus
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher
from trainers import inputs
from trainers.config.config import Config
from trainers.run_dir.run_dir import RunFolder


def launch(config: Config, argv: Sequence[str], console: Console) -> int:
    """Runs every task to its end and returns the exit code of the run.

    Args:
      config: what `argv` says.
      argv: the program's name and its arguments.
      console: told which task fails.

    Raises:
      UsageError: before any task is started.
    """
    folder = RunFolder.for_training(config)
    launcher = Launcher(plan_of(config, argv, folder), console.warn)
    inputs.fetch(config.data)
    exit_code = launcher.run()
    if launcher.num_restarts:
        folder.add_to_result(restarts=launcher.num_restarts)
    return exit_code


def plan_of(config: Config, argv: Sequence[str], folder: RunFolder) -> Plan:
    """What to start. The ports in it are free, and not held.

    Raises:
      UsageError: there are fewer GPUs than tasks that compute, or none to take the
        memory of.
    """
    num_tasks = {
        "chief": 1,
        "worker": config.strategy.num_workers or DEFAULT_NUM_WORKERS,
        "ps": config.strategy.num_ps or 1,
    }
    traits = registry.traits(config.strategy.strategy)
    num_tasks = {job: num_tasks[job] for job in traits.roles}
    _check_memory(sum(num_tasks.values()), config)
    gpus = visible_gpus(os.environ)
    given = config.device.memory_settings()
    if given and not gpus:
        raise UsageError(
            f"{given[0]} needs GPUs, and this machine has none that NVIDIA's driver "
            "shows: leave it out."
        )
    divide(gpus, num_tasks["worker"])
    return Plan(
        command=[
            *(sys.executable, "-m", "trainers.main"),
            *argv[1:],
            f"--run_dir={folder.path}",
        ],
        addresses=local_cluster(num_tasks),
        serving=traits.serving_roles,
        computing=("worker",),
        logs=folder.path / "logs",
        gpus=gpus,
        confine=config.strategy.confine_cluster,
        max_restarts=config.strategy.restarts_without_progress,
        patience_seconds=config.strategy.peer_timeout_seconds,
        to_continue=["--resume=auto"],
        saved_step=folder.saved_step,
        reached_step=folder.reached_step,
    )


# A process that has loaded TensorFlow 2.21 and Keras, and done nothing yet, has 260 MiB
# that no other one shares.
_LEAST_BYTES_OF_A_TASK = 200 << 20


def _check_memory(num_tasks: int, config: Config) -> None:
    """Raises UsageError if there are more processes than memory, whatever they run."""
    memory = psutil.virtual_memory().total + psutil.swap_memory().total
    if num_tasks * _LEAST_BYTES_OF_A_TASK > memory:
        given = {n: getattr(config.strategy, n) for n in ("num_workers", "num_ps")}
        words = " ".join(f"--{n}={v}" for n, v in given.items() if v is not None)
        raise UsageError(
            f"{words} makes {num_tasks:,} processes on this machine, each of which "
            f"needs {_LEAST_BYTES_OF_A_TASK >> 20} MiB at least, and it has "
            f"{memory / 2**30:.1f} GiB: lower it."
        )
