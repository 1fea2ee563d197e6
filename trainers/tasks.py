"""What this process does: everything, a chief's part, or the part of another task."""

from __future__ import annotations

import importlib
import pathlib

from strategies import discovery
from strategies.cluster import EVALUATOR, Cluster
from strategies.hosts import WHAT_IT_MEANS, has_remote
from trainers import inputs
from trainers.config import Config
from trainers.console import Console
from trainers.place import needs_tensorflow
from trainers.run_dir import RunFolder


def check_files(config: Config, cluster: Cluster) -> None:
    """What of a request can be known to be wrong before TensorFlow has been loaded.

    Raises:
      UsageError: the run's folder cannot be used, or there is no data.
    """
    serving = discovery.traits(config.strategy.strategy).serving_roles
    if config.run.mode == "evaluate":
        RunFolder.of_existing(config.run.run_dir or "").read_config()
    elif config.run.mode == "train" and cluster.job not in serving:
        inputs.check_paths(config.data)
        if cluster.is_chief:
            RunFolder.for_training(config)


def run_task(config: Config, cluster: Cluster, console: Console) -> int:
    """Runs this process's part to its end; most modes import TensorFlow.

    Raises:
      UsageError: this machine has not what is asked for.
    """
    strategy = config.strategy.strategy
    if has_remote(cluster.tasks().values()):
        console.warn(
            f"--allow_remote_hosts: {WHAT_IT_MEANS}; the network must keep everybody "
            f"else away from {cluster.address}."
        )
    if needs_tensorflow(config):
        devices = importlib.import_module("strategies.devices")
        devices.configure_devices(config.strategy, config.device)
    if cluster.job in discovery.traits(strategy).serving_roles:
        folder = RunFolder(pathlib.Path(config.run.run_dir or ""))
        with importlib.import_module("strategies.peers").lost_peers_named(cluster):
            return discovery.load(strategy).serve(
                config.strategy, cluster, folder.ending_path()
            )
    mode = config.run.mode if cluster.is_chief else "follow"
    if cluster.job == EVALUATOR:
        mode = "watch"
    run = getattr(importlib.import_module(f"trainers.modes.{mode}"), mode)
    if not cluster.addresses:
        return run(config, cluster, console)
    with importlib.import_module("strategies.peers").lost_peers_named(cluster):
        return run(config, cluster, console)
