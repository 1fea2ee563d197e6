"""Execution of one command line and its exit code."""

import contextlib
import functools
import importlib
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from strategies import registry
from strategies.cluster.connections import connect_without_proxy
from strategies.cluster.security import NO_PROTECTION, has_remote
from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console, print_error
from strategies.common.errors import ExitCode, PeerLostError, UsageError
from strategies.common.native_log import exit_at_once, silence_streams_that_fail
from strategies.common.text import one_line, printable
from strategies.processes.parent import end_with_launcher
from trainers import inputs
from trainers.cli import flags
from trainers.cli.launch import launch
from trainers.cli.role import cluster_of, has_emulated_hosts, needs_tensorflow
from trainers.cli.tensorflow_setup import check_backend, load_tensorflow
from trainers.config.config import Config
from trainers.config.user_code import check_packages
from trainers.fault_tolerance.tensorflow_errors import refusal_of
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.training_dir import TrainingDir
from trainers.user_code import ended

# Modes that inspect the machine. They print their findings, start no process and write
# no file.
_MODES_THAT_LOOK = ("doctor", "devices")
# Names of files have up to 255 characters.
_LONGEST_WORD, _LONGEST_LINE = 600, 4_000


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        config = flags.parse(argv)
    except flags.HelpRequested as help_requested:
        return _print_help(str(help_requested))
    except UsageError as error:
        return _refuse(error, flags.wants_tracebacks(argv))
    # From here on the configuration is known, and with it whether tracebacks are
    # wanted.
    console = Console()
    try:
        return _exit_code_of(lambda: _run(config, argv, console), config, console)
    finally:
        console.close()


def _exit_code_of(work: Callable[[], int], config: Config, console: Console) -> int:
    """Does the work, says why it fails if it does, and returns the exit code."""
    try:
        return work()
    except UsageError as error:
        return _refuse(error, config.run.verbose)
    except PeerLostError as error:
        console.fail(str(error), error.__cause__, config.run.verbose)
        _leave(ExitCode.PEER_LOST, console)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except SystemExit as error:
        # Raised where it is not known whose code runs, such as a layer's.
        return _refuse(
            ended("code of the model or the data", error), config.run.verbose
        )
    except Exception as error:
        # Some errors of TensorFlow have a cause that the user can correct, such as an
        # operation that XLA does not support; they end with exit code USAGE, not as a
        # bug.
        refusal = refusal_of(error, config)
        if refusal is not None:
            return _refuse(refusal, config.run.verbose)
        console.report_bug(error, config.run.verbose)
        return ExitCode.BUG


def _run(config: Config, argv: Sequence[str], console: Console) -> int:
    # First of all, so that a task cannot outlive its launcher while it imports
    # TensorFlow.
    end_with_launcher()
    check_backend(os.environ)
    check_packages(config)
    config.tracking.check_packages()
    if config.run.mode in _MODES_THAT_LOOK:
        return _look(config, console)
    # None: this process is the launcher, which never loads TensorFlow.
    cluster = cluster_of(config, os.environ)
    if cluster is None:
        return launch(config, argv, console)
    if cluster.addresses:
        connect_without_proxy(cluster.members().values(), os.environ)
    if needs_tensorflow(config):
        check_files(config, cluster)
        load_tensorflow(config)
    work = functools.partial(run_task, config, cluster, console)
    # Errors end here and not in `run`: a process with servers exits at once.
    exit_code = _exit_code_of(work, config, console)
    if cluster.addresses and config.strategy.traits.server_jobs:
        _leave(exit_code, console)
    return exit_code


def _look(config: Config, console: Console) -> int:
    """Runs a mode that inspects the machine.

    Raises:
      UsageError: TensorFlow or Keras is not installed.
    """
    mode = config.run.mode
    try:
        load_tensorflow(config)
        look = getattr(importlib.import_module(f"trainers.modes.{mode}"), mode)
    except ImportError as error:
        words = one_line(error)
        raise UsageError(
            f"TensorFlow or Keras is missing ({words}): make install."
        ) from error
    return look(config, console)


def _leave(exit_code: int, console: Console) -> NoReturn:
    """Exits at once; a clean shutdown would block on other tasks.

    When Python deletes TensorFlow's objects at exit, they release what they hold on
    servers, some of which have ended: the destructor of each traced function waits for
    an answer, with Python's lock, and others print tracebacks (TensorFlow 2.21,
    tensorflow/python/eager/polymorphic_function/atomic_function.py, `__del__`, which
    ends in `EagerContext::MaybeRemoveFunctionRemotely`).
    """
    console.close()
    exit_at_once(exit_code)


def _print_help(text: str) -> ExitCode:
    try:
        print(text, flush=True)
    except OSError as error:
        silence_streams_that_fail()
        # A reader such as `head` closes the pipe early; this is no error.
        if not isinstance(error, BrokenPipeError):
            words = f"standard output cannot be written ({error.strerror})"
            refused = UsageError(f"{words}: give it a terminal, or a disk with space.")
            return _refuse(refused, verbose=False)
    return ExitCode.DONE


def _shortened(line: str) -> str:
    """Shortens an error that quotes a very long value."""
    line = re.sub(rf"(\S{{{_LONGEST_WORD}}})\S+", r"\1...", line)
    if len(line) <= _LONGEST_LINE:
        return line
    half = _LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def _refuse(error: UsageError, verbose: bool) -> ExitCode:
    if verbose:
        traceback.print_exception(error)
    print_error(f"error: {_shortened(printable(str(error)))}")
    return ExitCode.USAGE


def check_files(config: Config, cluster: Cluster) -> None:
    """Checks the run folder and the data paths before TensorFlow is imported.

    Raises:
      UsageError: The run's folder cannot be used, or there is no data.
    """
    serving = config.strategy.traits.server_jobs
    if config.run.mode == "evaluate":
        RunDir.of_existing(config.run.run_dir or "").read_config()
    elif config.run.mode == "train" and cluster.job not in serving:
        # Parameter servers read no data.
        inputs.check_paths(config.data)
        if cluster.is_chief:
            # Only the chief begins the run in the folder.
            TrainingDir(config)


def run_task(config: Config, cluster: Cluster, console: Console) -> int:
    """Runs this process's part of the run to its end, and returns the exit code.

    Most modes import TensorFlow.

    Raises:
      UsageError: The machine lacks something that the configuration asks for.
    """
    if has_remote(cluster.tasks().values()) and not has_emulated_hosts(config):
        console.warn(
            f"--allow_remote_hosts: {NO_PROTECTION}; the network must keep everybody "
            f"else away from {cluster.address}."
        )
    if needs_tensorflow(config):
        # Imported late, because it imports TensorFlow, which the modes that start runs
        # do not need. Devices must be configured before TensorFlow initializes them.
        from strategies.devices.assignment import configure_devices

        configure_devices(config.strategy, config.device)
    with contextlib.ExitStack() as guards:
        if cluster.addresses:
            from strategies.cluster.failure_detection import translate_peer_errors

            guards.enter_context(translate_peer_errors(cluster))
        if cluster.job in config.strategy.traits.server_jobs:
            folder = RunDir(pathlib.Path(config.run.run_dir or ""))
            return registry.load(config.strategy.strategy).serve(
                config.strategy,
                cluster,
                functools.partial(folder.shutdown_path, cluster),
            )
        mode = "evaluator" if cluster.job == EVALUATOR else config.run.mode
        run = getattr(importlib.import_module(f"trainers.modes.{mode}"), mode)
        return run(config, cluster, console)
