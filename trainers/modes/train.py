"""Training (`--mode=train`), the same program on every task that trains."""

from __future__ import annotations

import contextlib
import pathlib
from contextlib import AbstractContextManager

from strategies.cluster.failure_detection import monitor_workers
from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.write_errors import WriteErrorReporter
from strategies.launcher.process import has_launcher
from trainers.config.config import Config
from trainers.fault_tolerance.watchdog import Watchdog
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.timing import Clock
from trainers.modes.training_run import TrainingRun
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.null_reporter import NullReporter
from trainers.reporting.reporter import Reporter
from trainers.reporting.tracking.tracking import Tracking
from trainers.run_dir.run_dir import FolderGoneError, RunDir


def train(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Trains on this task, together with all other tasks of the cluster that train.

    Args:
      config: Configuration of the run.
      cluster: This process's place in the cluster.
      console: Output of the process.

    Returns:
      Exit code of the run.

    Raises:
      UsageError: The configuration cannot be run; nothing has been written.
    """
    if cluster.is_chief:
        folder = RunDir.for_training(config)
    else:
        folder = RunDir(pathlib.Path(config.run.run_dir or ""))
    tracking = Tracking(config.tracking, console)
    strategy = create_strategy(config, cluster)
    errors = WriteErrorReporter(console, "they see that the chief is gone")

    def shutdown_servers(exit_code: int) -> None:
        errors.attempt(
            "other tasks cannot be told how the run has ended",
            lambda: strategy.shutdown_servers(folder.shutdown_path(), exit_code),
        )

    watchdog = Watchdog(
        config.guard.stall_timeout_seconds, cluster, console, shutdown_servers
    )
    try:
        with watchdog, _lost_workers_tolerated(config, cluster, console):
            clock = Clock(watchdog.note)
            parts = assemble(config, strategy)
            metrics = RunMetrics(clock, parts.pipeline)
            reporter = (
                Reporter(parts, cluster, console, folder, tracking, metrics)
                if cluster.is_chief
                else NullReporter(parts, cluster, console)
            )
            exit_code = TrainingRun(parts, reporter, metrics, watchdog, folder).run()
    except FolderGoneError:
        # Other tasks see that the chief is gone. A shutdown file would make the folder
        # anew.
        tracking.wait()
        raise
    except UsageError:
        shutdown_servers(ExitCode.USAGE)
        tracking.wait()
        raise
    shutdown_servers(exit_code)
    if cluster.is_chief and EVALUATOR in cluster.addresses:
        errors.attempt(
            "the evaluator cannot be told how the run has ended",
            lambda: folder.write_ending(f"{EVALUATOR}-0", exit_code),
        )
    # Nobody waits for this process any more.
    tracking.wait()
    return exit_code


def _lost_workers_tolerated(
    config: Config, cluster: Cluster, console: Console
) -> AbstractContextManager[None]:
    """Returns a context in which dead workers of a parameter server run are tolerated.

    The context does nothing for strategies without server jobs.
    """
    traits = config.strategy.traits
    if not traits.server_jobs:
        return contextlib.nullcontext()
    num_workers = len(cluster.addresses["worker"])
    # An update of a synchronous run needs all workers except the backup workers.
    num_required = config.strategy.num_required(num_workers)
    patience_seconds = return_seconds = config.strategy.peer_timeout_seconds
    if has_launcher():
        # It starts lost workers again, or ends the run. To start takes longer than
        # an answer.
        return_seconds = max(patience_seconds, config.strategy.startup_timeout_seconds)
    return monitor_workers(
        cluster, num_required, console.warn, patience_seconds, return_seconds
    )
