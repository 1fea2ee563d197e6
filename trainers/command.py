"""One command line: what it asks for, and how it ends."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from strategies import discovery
from strategies.end_with_launcher import end_with_launcher
from strategies.rendezvous import PeerLostError
from strategies.settings import UsageError, one_line, printable
from trainers import flags
from trainers.config import Config
from trainers.console import Console, complain
from trainers.custom.names import check_packages
from trainers.custom.own_code import ended
from trainers.launch import launch
from trainers.outcome import ExitCode
from trainers.place import cluster_of, needs_tensorflow
from trainers.refusals import refusal_of
from trainers.runtime import check_backend, load_tensorflow
from trainers.tasks import check_files, run_task


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        config = flags.parse(argv)
    except flags.HelpRequested as help_requested:
        return _print_help(str(help_requested))
    except UsageError as error:
        return _refuse(error, flags.wants_tracebacks(argv))
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
        # Of code that is not called while it is known whose it is, such as a layer's.
        return _refuse(
            ended("code of the model or the data", error), config.run.verbose
        )
    except Exception as error:
        refusal = refusal_of(error, config)
        if refusal is not None:
            return _refuse(refusal, config.run.verbose)
        if _is_out_of_memory(error):
            return _refuse(_does_not_fit(error), config.run.verbose)
        console.report_bug(error, config.run.verbose)
        return ExitCode.BUG


def _run(config: Config, argv: Sequence[str], console: Console) -> int:
    end_with_launcher()
    check_backend(os.environ)
    check_packages(config)
    config.tracking.check_packages()
    if config.run.mode in _MODES_THAT_LOOK:
        return _look(config, console)
    cluster = cluster_of(config, os.environ)
    if cluster is None:
        return launch(config, argv, console)
    if needs_tensorflow(config):
        check_files(config, cluster)
        load_tensorflow(config)
    work = functools.partial(run_task, config, cluster, console)
    exit_code = _exit_code_of(work, config, console)
    traits = discovery.traits(config.strategy.strategy)
    if cluster.addresses and traits.serving_roles:
        _leave(exit_code, console)
    return exit_code


# They print what they find, and start and write nothing.
_MODES_THAT_LOOK = ("doctor", "devices")


def _look(config: Config, console: Console) -> int:
    """Does what such a mode does, unless there is no TensorFlow or Keras for it."""
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
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(exit_code)


def _print_help(text: str) -> ExitCode:
    try:
        print(text, flush=True)
    except OSError as error:
        # Python would fail once more on what is left in the buffer when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader such as `head` may have seen enough.
        if not isinstance(error, BrokenPipeError):
            words = f"--help cannot be printed ({error.strerror}): give it a terminal."
            return _refuse(UsageError(words), verbose=False)
    return ExitCode.DONE


def _is_out_of_memory(error: Exception) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return isinstance(error, MemoryError) or (
        tensorflow is not None
        and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    )


def _does_not_fit(error: Exception) -> UsageError:
    words = one_line(error)[:200]
    refusal = UsageError(
        f"this does not fit into memory ({words}): lower --global_batch_size, or make "
        "the model or the data set smaller."
    )
    refusal.__cause__ = error
    return refusal


def _shortened(line: str) -> str:
    """Leaves out the middle of what has been pasted into a flag."""
    line = re.sub(rf"(\S{{{_LONGEST_WORD}}})\S+", r"\1...", line)
    if len(line) <= _LONGEST_LINE:
        return line
    half = _LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


# Names of files have up to 255 characters.
_LONGEST_WORD, _LONGEST_LINE = 600, 4_000


def _refuse(error: UsageError, verbose: bool) -> ExitCode:
    if verbose:
        traceback.print_exception(error)
    complain(f"error: {_shortened(printable(str(error)))}")
    return ExitCode.USAGE
