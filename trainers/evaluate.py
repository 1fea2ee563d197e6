"""--mode=evaluate: the newest checkpoint of a run, on its held-out examples."""

from __future__ import annotations

import dataclasses

from strategies.cluster import Cluster
from strategies.settings import UsageError
from trainers.assembly import assemble, create_strategy
from trainers.checkpoints import Checkpoints
from trainers.config import Config
from trainers.console import Console
from trainers.outcome import ExitCode
from trainers.reporting import in_words
from trainers.run_dir import RunFolder


def evaluate(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Prints loss and metrics. Writes nothing.

    The model, data and update are those of the run; the strategy and its devices may be
    others.

    Raises:
      UsageError: there is no run in the folder, or no checkpoint that can be read.
    """
    folder = RunFolder.of_existing(config.run.run_dir or "")
    settings = dataclasses.replace(
        folder.read_config(), strategy=config.strategy, device=config.device
    )
    assembly = assemble(settings, create_strategy(settings, cluster))
    checkpoints = Checkpoints(
        folder.checkpoints,
        model=assembly.model,
        optimizer=assembly.optimizer,
        step=assembly.step,
        keep=settings.report.keep_checkpoints,
    )
    if checkpoints.restore_newest(console.warn) is None:
        raise UsageError(
            f"--run_dir={folder.path} has no checkpoint: train it first, or continue "
            "it with --mode=train --resume=auto."
        )
    means = assembly.evaluation.run()
    examples = assembly.data.evaluation.num_examples
    console.say(
        f"eval  | step {int(assembly.step.numpy())} | {in_words(means)} | "
        f"{examples:,} examples"
    )
    return ExitCode.DONE
