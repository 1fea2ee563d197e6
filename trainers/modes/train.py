"""Training (`--mode=train`), the same program on every task that trains."""

from __future__ import annotations

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from trainers.config.config import Config
from trainers.keras_program.callbacks_of_run import epochs_of_run
from trainers.keras_program.program import train_program
from trainers.loop.builder import assemble
from trainers.modes.training_task import TrainingTask


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
    with TrainingTask(config, cluster, console) as task:
        if config.model.script is not None:
            task.exit_code = train_program(
                config, cluster, task.strategy, console, task.train
            )
        else:
            parts = assemble(task.config, task.strategy)
            epochs = epochs_of_run(parts, cluster.is_chief)
            task.exit_code = task.train(parts, epochs)
            if epochs is not None and task.exit_code == ExitCode.DONE:
                # Otherwise the run has closed it.
                task.strategy.close()
    return task.exit_code
