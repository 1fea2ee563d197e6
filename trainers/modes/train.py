"""Training run of the chief (`--mode=train`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from strategies.base import Strategy
from strategies.cluster.failure_detection import monitor_workers
from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.write_errors import WriteErrorReporter
from strategies.launcher.process import has_launcher
from trainers.config.config import Config
from trainers.experiments.verify.keras_step import record_keras_step
from trainers.fault_tolerance.rollback import Rollbacks
from trainers.fault_tolerance.watchdog import Watchdog
from trainers.loop.builder import TrainingParts, assemble, create_strategy
from trainers.loop.timing import Clock
from trainers.modes.training_run import TrainingRun
from trainers.reporting.metrics import PipelineIdleMeter
from trainers.reporting.reporter import Reporter
from trainers.reporting.result import versions
from trainers.reporting.startup_report import print_startup_report
from trainers.reporting.tracking.tracking import Tracking
from trainers.run_dir.checkpoints import Checkpoints, weights_sha256
from trainers.run_dir.run_dir import FolderGoneError, RunDir
from trainers.run_dir.train_state import TrainCounters


def train(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Trains as the chief and writes the run folder.

    Args:
      config: Configuration of the run.
      cluster: This process's place in the cluster.
      console: Output of the process.

    Returns:
      Exit code of the run.

    Raises:
      UsageError: The configuration cannot be run; nothing has been written.
    """
    folder = RunDir.for_training(config)
    outside = Tracking(config.tracking, console)
    strategy = create_strategy(config, cluster)
    spell = WriteErrorReporter(console, "they see that the chief is gone")

    def shutdown_servers(exit_code: int) -> None:
        spell.attempt(
            "other tasks cannot be told how the run has ended",
            lambda: strategy.shutdown_servers(folder.shutdown_path(), exit_code),
        )

    stall = Watchdog(
        config.guard.stall_timeout_seconds, cluster, console, shutdown_servers
    )
    try:
        with stall, _workers_attended(config, cluster, console):
            run = (config, cluster, strategy, folder, console, stall, outside)
            exit_code = _train(*run)
    except FolderGoneError:
        # Other tasks see that the chief is gone. A file that tells them so would make
        # the folder anew.
        outside.wait()
        raise
    except UsageError:
        shutdown_servers(ExitCode.USAGE)
        outside.wait()
        raise
    shutdown_servers(exit_code)
    if EVALUATOR in cluster.addresses:
        spell.attempt(
            "the evaluator cannot be told how the run has ended",
            lambda: folder.write_ending(f"{EVALUATOR}-0", exit_code),
        )
    # Nobody waits for this process any more.
    outside.wait()
    return exit_code


def _workers_attended(
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


def _train(
    config: Config,
    cluster: Cluster,
    strategy: Strategy,
    folder: RunDir,
    console: Console,
    stall: Watchdog,
    outside: Tracking,
) -> ExitCode:
    clock = Clock(stall.note)
    assembly = assemble(config, strategy)
    stall.note("startup")
    stall.count(assembly.step)
    # Before a checkpoint is restored, so that a resumed run reports the same digest.
    initial_weights_sha256 = weights_sha256(assembly.model)
    checkpoints = _checkpoints_of(assembly, folder)
    rollbacks = Rollbacks(
        checkpoints,
        assembly.learning_rate_scale,
        config.guard.most_rollbacks,
        console.warn,
    )
    state = checkpoints.restore_newest(console.warn) if folder.holds_a_run else None
    rollbacks.restore(state or {})
    # Makes the replicas of all processes equal to the restored state.
    strategy.broadcast_from_chief(assembly.state_variables())
    first_step = int(assembly.step.numpy())
    # A run without a result, such as one killed in its last checkpoint, still writes
    # one.
    if first_step >= assembly.train_steps and folder.read_result() is not None:
        console.say(f"{folder.path} is complete at step {first_step}: nothing to do.")
        return ExitCode.DONE
    # From here on the folder is locked and written.
    folder.begin(config, first_step)
    checkpoints.remove_unfinished()
    console.open_log(folder.log_path(cluster.task))
    print_startup_report(assembly, folder, first_step, console)
    if not first_step:
        record_keras_step(assembly, folder.path)
    tally = TrainCounters(
        attempted_steps=first_step,
        examples_seen=assembly.order.first_example_of_step(first_step),
    )
    parts = (assembly, folder, checkpoints, console, clock, tally, rollbacks, outside)
    reporting = Reporter(*parts)
    _take_up(reporting, state, assembly)
    run = TrainingRun(
        assembly=assembly,
        cluster=cluster,
        folder=folder,
        reporting=reporting,
        console=console,
        clock=clock,
        tally=tally,
        rollbacks=rollbacks,
        bubble=PipelineIdleMeter(assembly.pipeline),
        stall=stall,
    )
    # From here on, every end of the run writes a result and reports it.
    outside.begin(assembly, folder, versions())
    return run.run_to_end(first_step, initial_weights_sha256)


def _checkpoints_of(assembly: TrainingParts, folder: RunDir) -> Checkpoints:
    return Checkpoints(
        folder.checkpoints,
        model=assembly.model,
        optimizer=assembly.optimizer,
        step=assembly.step,
        keep=assembly.config.report.keep_checkpoints,
        replica_state=assembly.strategy.replica_state(),
    )


def _take_up(
    reporting: Reporter, state: Mapping[str, Any] | None, assembly: TrainingParts
) -> None:
    """Restores the reports of a resumed run; saves a first checkpoint for rollbacks."""
    if state is not None:
        reporting.restore(state)
    if assembly.config.guard.rolls_back:
        if state is None:
            # Most learning rates that are too large diverge before the first regular
            # checkpoint.
            reporting.save_checkpoint()
        assembly.strategy.broadcast_from_chief([])
