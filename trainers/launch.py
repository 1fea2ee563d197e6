"""Starts a cluster on this machine: the same command line once for each task."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from strategies import discovery
from strategies.config import DEFAULT_NUM_WORKERS
from strategies.gpus import divide, visible_gpus
from strategies.launch_plan import Plan, local_cluster
from strategies.launcher import Launcher
from strategies.settings import UsageError
from trainers import inputs
from trainers.config import Config
from trainers.console import Console
from trainers.run_dir import RunFolder


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
    gpus = visible_gpus(os.environ)
    given = config.device.memory_settings()
    if given and not gpus:
        raise UsageError(
            f"{given[0]} needs GPUs, and this machine has none that NVIDIA's driver "
            "shows: leave it out."
        )
    divide(gpus, num_tasks["worker"])
    traits = discovery.traits(config.strategy.strategy)
    return Plan(
        command=[
            *(sys.executable, "-m", "trainers.main"),
            *argv[1:],
            f"--run_dir={folder.path}",
        ],
        addresses=local_cluster({job: num_tasks[job] for job in traits.roles}),
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
