"""The entry point: python -m trainers.main --strategy=mirrored."""

import importlib
import os
import pathlib
import sys
import types
from collections.abc import Sequence

# `python -m` puts the present folder first, which may have modules of these names.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from models.name_collisions import OWN_PACKAGES, check_present_folder
from strategies.common.errors import ExitCode
from strategies.common.native_log import (
    exit_at_once,
    prepare_standard_streams,
    silence_streams_that_fail,
)
from strategies.common.signals import learn_ends_of_children

sys.path.pop(0)


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        command = _command()
        return ExitCode.USAGE if command is None else command.run(argv)
    except KeyboardInterrupt:
        # Before the configuration is known; later the command handles it.
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def _command() -> types.ModuleType | None:
    """Imports the command; returns None, and says so, if a package is not found."""
    try:
        check_present_folder(pathlib.Path(__file__).parents[1])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return None
    # Not imported at the top: without an active .venv the first missing package would
    # end the process with a traceback.
    try:
        return importlib.import_module("trainers.cli.app")
    except ModuleNotFoundError as error:
        # A missing module of this project is a bug, not a missing installation.
        if (error.name or "").partition(".")[0] in OWN_PACKAGES:
            raise
        print(
            f"error: {sys.executable} has no package {error.name}: make install, then "
            "source .venv/bin/activate.",
            file=sys.stderr,
        )
        return None


def console() -> None:
    """Runs the command line of this process, and ends the process."""
    prepare_standard_streams()
    learn_ends_of_children()
    exit_code = main(sys.argv)
    # A stream that is not at its end is read by threads that call Python. Its iterator
    # is deleted with Python's lock held, and waits for threads that wait for the lock:
    # the process of a run that met a damaged record did not end (TensorFlow 2.21).
    if "tensorflow" in sys.modules:
        exit_at_once(exit_code)
    silence_streams_that_fail()
    sys.exit(exit_code)


def console_script() -> None:
    """Runs the installed command, which finds modules as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    console()


if __name__ == "__main__":
    console()
