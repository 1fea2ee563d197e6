"""Training (`--mode=train`), the same program on every task that trains."""

from __future__ import annotations

import os

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.common.files import is_url
from trainers.config.config import Config
from trainers.keras_program.callbacks_of_run import epochs_of_run
from trainers.keras_program.program import Program
from trainers.loop.builder import assemble
from trainers.modes.training_task import TrainingTask
from trainers.run_dir.training_dir import default_path


def train(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Trains on this task, with all other tasks that train; returns the exit code.

    Raises:
      UsageError: The configuration cannot be run; nothing has been written.
    """
    if config.model.script is not None:
        config = _with_absolute_paths(config)
    with TrainingTask(config, cluster, console) as task:
        if config.model.script is not None:
            program = Program(config, cluster, task.strategy, console, task.train)
            task.exit_code = program.run()
        else:
            parts = assemble(task.config, task.strategy)
            epochs = epochs_of_run(parts, cluster.is_chief)
            task.exit_code = task.train(parts, epochs)
            if epochs is not None and task.exit_code == ExitCode.DONE:
                # Otherwise the run has closed it.
                task.strategy.close()
    return task.exit_code


def _with_absolute_paths(config: Config) -> Config:
    """Returns a configuration that writes to the same folders after an `os.chdir`.

    A program may change the folder before its `fit`, which begins the run.
    """
    events = config.tracking.tensorboard_dir
    if events is not None and not is_url(events):
        events = os.path.abspath(events)
    folder = config.run.run_dir or default_path(config)
    return config.replace(run_dir=os.path.abspath(folder), tensorboard_dir=events)
