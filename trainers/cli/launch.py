"""Launch of a cluster of tasks on this machine."""

import dataclasses
import os
import sys
from collections.abc import Sequence

import psutil

from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.devices.gpu import divide, visible_gpus
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher
from trainers import inputs
from trainers.cli.flags import split_arguments
from trainers.cli.tensorflow_setup import variables_of_import
from trainers.cli.warm_start import starter_of
from trainers.config.config import Config
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.training_dir import TrainingDir

# A process that has loaded TensorFlow 2.21 and Keras, and done nothing yet, has 260 MiB
# that no other one shares.
_LEAST_BYTES_OF_A_TASK = 200 << 20


def launch(config: Config, argv: Sequence[str], console: Console) -> int:
    """Starts every task, waits for all of them and returns the run's exit code.

    Raises:
      UsageError: A request cannot be met. No task has been started yet.
    """
    folder = TrainingDir(config)
    with starter_of(config) as starter:
        plan = plan_of(config, argv, folder)
        plan = dataclasses.replace(plan, starter=starter)
        launcher = Launcher(plan, console.warn)
        # Once here, so that the tasks do not download the same data at the same time.
        inputs.fetch(config.data)
        exit_code = launcher.run()
    if launcher.num_restarts:
        folder.add_to_result(restarts=launcher.num_restarts)
    return exit_code


def plan_of(config: Config, argv: Sequence[str], folder: RunDir) -> Plan:
    """Returns the plan of the cluster: command, addresses, GPUs and restart policy.

    The ports in the plan are free but not reserved.

    Raises:
      UsageError: The machine has fewer GPUs than workers, or has no GPU although a
        setting limits GPU memory.
    """
    num_tasks = {
        "chief": 1,
        "worker": config.strategy.expected_workers,
        "ps": config.strategy.num_ps or 1,
    }
    traits = config.strategy.traits
    num_tasks = {job: num_tasks[job] for job in traits.roles}
    _check_memory(sum(num_tasks.values()), config)
    gpus = visible_gpus(os.environ)
    given = config.device.memory_settings()
    if given and not gpus:
        raise UsageError(
            f"{given[0]} needs GPUs, and this machine has none that NVIDIA's driver "
            "shows: leave it out."
        )
    bandwidth = config.strategy.emulated_bandwidth_mbit
    # Only for its check: the launcher divides the GPUs itself when it starts the
    # workers.
    divide(gpus, num_tasks["worker"])
    arguments = config.model.script_arguments
    return Plan(
        command=[
            sys.executable,
            "-m",
            "trainers.main",
            *split_arguments(argv)[0][1:],
            # The last flag wins, so all tasks use the folder that the launcher chose.
            f"--run_dir={folder.path}",
        ],
        addresses=local_cluster(num_tasks, has_hosts=bandwidth is not None),
        server_jobs=traits.server_jobs,
        logs=folder.path / "logs",
        has_begun=lambda: folder.holds_a_run,
        gpus=gpus,
        isolation=config.strategy.isolate_network,
        emulated_bandwidth_mbit=bandwidth,
        # A variable that the user has set counts more.
        variables=variables_of_import(config),
        max_restarts=config.strategy.restarts_without_progress,
        suspend_timeout_seconds=config.strategy.peer_timeout_seconds,
        stop_timeout_seconds=config.strategy.stop_timeout_seconds,
        # Added to the command when all tasks are restarted.
        resume_flags=["--resume=auto"],
        last_arguments=["--", *arguments] if arguments else (),
        saved_step=folder.saved_step,
        reached_step=folder.reached_step,
    )


def _check_memory(num_tasks: int, config: Config) -> None:
    """Raises UsageError if there are more processes than memory for any model."""
    memory = psutil.virtual_memory().total + psutil.swap_memory().total
    if num_tasks * _LEAST_BYTES_OF_A_TASK > memory:
        given = {n: getattr(config.strategy, n) for n in ("num_workers", "num_ps")}
        words = " ".join(f"--{n}={v}" for n, v in given.items() if v is not None)
        raise UsageError(
            f"{words} makes {num_tasks:,} processes on this machine, each of which "
            f"needs {_LEAST_BYTES_OF_A_TASK >> 20} MiB at least, and it has "
            f"{memory / 2**30:.1f} GiB: lower it."
        )
