"""Training (`--mode=train`), the same program on every task that trains."""

from __future__ import annotations

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from trainers.config.config import Config
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
            task.exit_code = train_program(config, cluster, task.strategy, task.train)
        else:
            task.exit_code = task.train(assemble(config, task.strategy))
    return task.exit_code
