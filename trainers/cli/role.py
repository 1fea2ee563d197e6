"""Role of this process: single process, cluster task or launcher."""

import pathlib
from collections.abc import Mapping

from strategies.base import Traits
from strategies.cluster import slurm
from strategies.cluster.security import check_hosts
from strategies.cluster.spec import Cluster, check_roles, from_environment
from strategies.common.errors import UsageError
from strategies.common.text import as_argument
from strategies.config_checks import check_workers_left
from strategies.processes.network_isolation import REQUIRED
from strategies.processes.parent import LAUNCHER_PID
from trainers.cli.tensorflow_setup import load_tensorflow
from trainers.config.config import Config
from trainers.config.run import MODES_THAT_START_RUNS
from trainers.run_dir.run_dir import RunDir


def needs_tensorflow(config: Config) -> bool:
    """Returns whether this process computes anything itself."""
    return config.run.mode not in MODES_THAT_START_RUNS


def cluster_of(config: Config, environment: Mapping[str, str]) -> Cluster | None:
    """Returns this process's place in a cluster.

    This function imports no TensorFlow, unless Slurm has started this process.

    Returns:
      Cluster without addresses for a single process, the cluster of TF_CONFIG or Slurm
        for a task, None for the launcher of a new cluster on this machine.

    Raises:
      UsageError: The environment's cluster is malformed or does not fit the strategy or
        mode.
    """
    name, traits = config.strategy.strategy, config.strategy.traits
    cluster = from_environment(environment)
    is_started_here = cluster is None and not slurm.is_step(environment)
    if is_started_here:
        check_workers_left(config.strategy, config.strategy.expected_workers)
    if config.run.mode in MODES_THAT_START_RUNS:
        if cluster is not None:
            raise UsageError(
                f"--mode={config.run.mode} starts runs by itself, but TF_CONFIG says "
                f"that this is {cluster.task} of a cluster: unset TF_CONFIG."
            )
        return Cluster()
    if not traits.multi_process:
        if cluster is not None and len(cluster.tasks()) > 1:
            raise UsageError(
                f"--strategy={name} is for one process, but TF_CONFIG says that this "
                f"is {cluster.task} of {len(cluster.tasks())} tasks: choose a strategy "
                "for several, or unset TF_CONFIG."
            )
        return Cluster()
    if config.run.mode not in ("train", "doctor"):
        raise UsageError(
            f"--mode={config.run.mode} is for one process, and --strategy={name} for "
            "several: leave --strategy out."
        )
    if is_started_here:
        return None
    # A launcher gives its tasks TF_CONFIG. Other processes start runs, too.
    if LAUNCHER_PID not in environment or cluster is None:
        _check_not_of_a_launcher(config)
    if cluster is not None:
        check_roles(cluster, traits.roles, traits.optional_roles)
        _check_sizes(config, cluster, traits)
    if not (config.strategy.allow_remote_hosts or has_emulated_hosts(config)):
        check_hosts(slurm.hosts(environment) if cluster is None else cluster.hosts())
    if config.run.run_dir is None:
        raise UsageError(
            "--run_dir is missing: every task of a cluster must be given the folder "
            "of the run."
        )
    # All tasks use the folder, so all of them check it for links and special files.
    # Only the chief examines its contents.
    RunDir(pathlib.Path(config.run.run_dir)).check_own()
    if cluster is None:
        return _cluster_of_slurm(config, traits, environment)
    return cluster


def has_emulated_hosts(config: Config) -> bool:
    """Returns whether the launcher of this task has made the hosts of all tasks.

    Nobody else reaches them, although they are not loopback.
    """
    return config.strategy.emulated_bandwidth_mbit is not None


def _check_not_of_a_launcher(config: Config) -> None:
    """Raises UsageError for settings that only who starts all tasks could act on."""
    strategy = config.strategy
    is_required = strategy.isolate_network == REQUIRED
    given = {
        "--max_restarts": strategy.max_restarts,
        "--set=strategy.isolate_network": REQUIRED if is_required else None,
        "--emulated_bandwidth_mbit": strategy.emulated_bandwidth_mbit,
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name}={as_argument(value)} is for tasks that one command starts on "
                "this machine, and TF_CONFIG or Slurm says that this is one task of a "
                "cluster: leave it out, or unset TF_CONFIG."
            )


def _check_sizes(config: Config, cluster: Cluster, traits: Traits) -> None:
    """Checks that TF_CONFIG has as many tasks as flags ask for.

    Raises:
      UsageError: it has more or fewer, or too few for --backup_workers.
    """
    workers = cluster.computing
    if "worker" in traits.server_jobs:
        workers = cluster.addresses["worker"]
    found = {"num_workers": workers, "num_ps": cluster.addresses.get("ps", ())}
    for name, addresses in found.items():
        wanted = getattr(config.strategy, name)
        if wanted not in (None, len(addresses)):
            raise UsageError(
                f"--{name}={wanted} does not fit TF_CONFIG, which has "
                f"{len(addresses)}: leave it out, or change TF_CONFIG."
            )
    check_workers_left(config.strategy, len(workers))


def _cluster_of_slurm(
    config: Config, traits: Traits, environment: Mapping[str, str]
) -> Cluster:
    # None: as many workers as Slurm started tasks.
    wanted = {
        "chief": 1,
        "worker": config.strategy.num_workers,
        "ps": config.strategy.num_ps or 1,
    }
    jobs = slurm.num_tasks_by_job(
        environment, {job: wanted[job] for job in traits.roles}
    )
    check_workers_left(config.strategy, jobs["worker"])
    # TensorFlow's resolver of Slurm clusters identifies the task.
    load_tensorflow(config)
    return slurm.identify(environment, jobs)
