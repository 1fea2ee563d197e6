"""Evaluation of a run's newest checkpoint (`--mode=evaluate`)."""

import dataclasses
import shlex
from typing import Any

from models import factories
from models.objective import as_scalars
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.text import as_argument, shown
from strategies.config import StrategyConfig
from strategies.devices.config import DeviceConfig
from trainers.config.config import Config
from trainers.config.data import PATHS, DataConfig
from trainers.config.groups import defaults_of, option
from trainers.config.run import ThreadsConfig
from trainers.config.user_code import check_given
from trainers.loop.builder import assemble, create_strategy
from trainers.reporting.metrics_writer import metrics_in_words
from trainers.run_dir.checkpoint_names import check_is_no_pattern
from trainers.run_dir.export import read_keras
from trainers.run_dir.run_dir import RunDir

# Settings that flags decide; all others are the run's.
_DECIDED_BY_FLAGS = {
    *defaults_of(StrategyConfig, DeviceConfig, ThreadsConfig),
    "mode", "run_dir", "resume", "verbose", "warm_start",
    "exported_model", "eval_global_batch_size",
    *PATHS,
}  # fmt: skip


def evaluate(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Prints loss and metrics on the held-out examples. Writes nothing.

    Model, data and update are the run's; the strategy and its devices may differ.

    Raises:
      UsageError: The folder holds no run or no readable checkpoint, or its settings
        name files or functions that the flags do not name.
    """
    folder = RunDir.of_existing(config.run.run_dir or "")
    check_is_no_pattern(folder.path)
    settings = _settings_of(folder, config)
    parts = assemble(settings, create_strategy(settings, cluster))
    # Without the replicas' own state: the strategy may be another than the run's.
    checkpoints = parts.checkpoints(folder.checkpoints)
    exported = config.report.exported_model
    if exported is not None:
        read_keras(exported, parts.model)
    elif checkpoints.restore_newest(console.warn) is None:
        raise UsageError(
            f"--run_dir={folder.path} has no checkpoint: train it first, or continue "
            "it with --mode=train --resume=auto."
        )
    means = as_scalars(parts.evaluation.run().means)
    examples = parts.data.evaluation.num_examples
    what = f"step {parts.applied_steps()}" if exported is None else exported
    console.say(f"eval  | {what} | {metrics_in_words(means)} | {examples:,} examples")
    return ExitCode.DONE


def _settings_of(folder: RunDir, given: Config) -> Config:
    """Returns the run's settings, with strategy, devices and paths from the flags."""
    of_run = folder.read_config()
    if (script := of_run.model.script) is not None:
        raise UsageError(
            f"--run_dir={folder.path} is a run of --script={shown(script)}, which "
            "--mode=evaluate does not take: let the program evaluate after its fit, "
            "and continue the run with --resume=auto."
        )
    # Compared before the settings are merged: config.json may come from another person.
    # Callbacks are not called.
    settings = {**of_run.to_dict(), "callbacks": None}
    check_given(settings, given.to_dict(), f"--run_dir={folder.path}")
    _check_agreement(of_run, given, folder)
    # The checkpoint replaces the initial weights, whose file may be gone.
    model = dataclasses.replace(of_run.model, initial_weights=None)
    if model.is_custom:
        # The flags name its function.
        model = dataclasses.replace(model, model=given.model.model)
    report = given.report
    if "eval_global_batch_size" not in given.given:
        size = of_run.report.eval_global_batch_size
        report = dataclasses.replace(report, eval_global_batch_size=size)
    return dataclasses.replace(
        of_run,
        report=report,
        strategy=given.strategy,
        model=model,
        device=given.device,
        data=_data_of(folder, of_run.data, given.data),
    )


def _check_agreement(of_run: Config, given: Config, folder: RunDir) -> None:
    """Raises UsageError if a flag contradicts a setting that the run decides."""
    trained, wanted = of_run.to_dict(), given.to_dict()
    for name in wanted:
        if name not in given.given or name in _DECIDED_BY_FLAGS:
            continue
        # config.json has what the run made of it.
        if (name, wanted[name]) == ("jit_compile", "auto"):
            continue
        if not _agree(trained[name], wanted[name]):
            raise UsageError(
                f"{option(name)}={shown(as_argument(wanted[name]))} has no effect with "
                f"--mode=evaluate: --run_dir={folder.path} was trained with "
                f"{option(name)}={shown(as_argument(trained[name]))}; leave it out."
            )


def _agree(trained: Any, wanted: Any) -> bool:
    """Returns whether two values are equal, or the same function of a file.

    A path to it depends on the folder in which a command is run.
    """
    values = (trained, wanted)
    if all(isinstance(value, str) and factories.is_factory(value) for value in values):
        return trained.rpartition("/")[2] == wanted.rpartition("/")[2]
    return trained == wanted


def _data_of(folder: RunDir, of_run: DataConfig, given: DataConfig) -> DataConfig:
    """Returns the run's data settings, with the paths from the flags.

    Raises:
      UsageError: The run has paths that the flags do not have.
    """
    if factories.is_factory(of_run.dataset):
        of_run = dataclasses.replace(of_run, dataset=given.dataset)
    # A folder from another person must not decide which files are read on this machine.
    named = {n: getattr(of_run, n) for n in PATHS if getattr(of_run, n) is not None}
    paths = {name: getattr(given, name) for name in PATHS}
    if given.dataset == of_run.dataset and all(paths[name] for name in named):
        return dataclasses.replace(of_run, **paths)
    if named:
        flags = shlex.join(f"--{name}={shown(path)}" for name, path in named.items())
        raise UsageError(
            f"--run_dir={folder.path}: its config.json names files outside, which only "
            f"flags may: add --dataset={of_run.dataset} {flags} to read them."
        )
    return of_run
