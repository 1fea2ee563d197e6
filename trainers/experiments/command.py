"""The command of one run, and its process."""

import os
import pathlib
import shlex
import sys

from strategies.common.errors import ExitCode, StopRequested, UsageError
from strategies.processes.starter import ProcessStarter
from trainers.cli import flags
from trainers.cli.tensorflow_setup import variables_of_import
from trainers.config.config import Config
from trainers.experiments.measurement import Measured, measure
from trainers.fault_tolerance.preemption import PreemptionSignals
from trainers.run_dir.run_dir import RunDir


def command_line(config: Config) -> list[str]:
    """Returns the command line of a process that runs a configuration."""
    return [sys.executable, "-m", "trainers.main", *flags.arguments_of(config)]


def command_again(config: Config, run_dir: pathlib.Path | None = None) -> str:
    """Returns a shell command that repeats an experiment, or continues it."""
    folder = None if run_dir is None else str(run_dir)
    words = flags.arguments_of(config.replace(run_dir=folder))
    strategy = f"--strategy={config.strategy.strategy}"
    # --strategies names it too. The first word is meant: a program's arguments follow.
    if config.comparison.strategies and strategy in words:
        words.remove(strategy)
    return shlex.join(["python", "-m", "trainers.main", *words])


def environment_of(config: Config) -> dict[str, str]:
    """Returns the environment variables of the process of a run."""
    return {**variables_of_import(config), **os.environ}


def measure_run(
    config: Config,
    log: pathlib.Path,
    signals: PreemptionSignals,
    starter: ProcessStarter,
) -> Measured:
    """Runs a training to its end, and writes its measurements to the run folder.

    Raises:
      StopRequested: A signal arrived; the run has ended.
      UsageError: A program has ended well and has trained nothing.
    """
    measured = measure(
        command_line(config),
        log,
        lambda: signals.requested,
        environment_of(config),
        starter,
    )
    if measured is None:
        raise StopRequested(signals.exit_code)
    folder = pathlib.Path(config.run.run_dir or "")
    script, has_ended_well = config.model.script, measured.exit_code == ExitCode.DONE
    if script and has_ended_well and RunDir(folder).read_result() is None:
        raise UsageError(
            f"--script={script} trains nothing (each fit has an "
            "initial_epoch that is not less than its epochs, or the program prints "
            "help): there is no run to measure."
        )
    # A command that ended before its run began has left no folder.
    folder.mkdir(parents=True, exist_ok=True)
    measured.write(folder)
    return measured
