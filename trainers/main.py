"""The entry point: python -m trainers.main --strategy=mirrored."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from strategies.settings import UsageError
from trainers import flags
from trainers.config import Config
from trainers.console import Console
from trainers.outcome import ExitCode
from trainers.quiet import native_log_hidden


def main(argv: Sequence[str]) -> ExitCode:
    """Runs one command line and returns its exit code."""
    try:
        config = flags.parse(argv)
    except flags.HelpRequested as help_requested:
        print(help_requested)
        return ExitCode.DONE
    except UsageError as error:
        return _refuse(error, verbose="--verbose" in argv)
    _load_tensorflow(config.run.verbose)
    return _run(config)


def _load_tensorflow(verbose: bool) -> None:
    """Imports it, and looks for GPUs, which also logs from C++."""
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with contextlib.nullcontext() if verbose else native_log_hidden():
        import tensorflow as tf

        tf.config.list_physical_devices()


def _run(config: Config) -> ExitCode:
    console = Console()
    try:
        module = importlib.import_module(f"trainers.{config.run.mode}")
        return getattr(module, config.run.mode)(config, console)
    except UsageError as error:
        return _refuse(error, config.run.verbose)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:
        console.report_bug(error, config.run.verbose)
        return ExitCode.BUG
    finally:
        console.close()


def _refuse(error: UsageError, verbose: bool) -> ExitCode:
    if verbose:
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    return ExitCode.USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
