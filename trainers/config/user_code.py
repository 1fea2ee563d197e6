"""Checks of settings that name functions of the user."""

import importlib.util
import pathlib
import shlex
import warnings
from collections.abc import Mapping
from typing import Any

from models import factories
from models.name_collisions import check_names
from strategies.common.errors import UsageError
from strategies.common.text import shown
from trainers.config.config import Config

# Settings that accept a function as `package.module:factory`.
_SETTINGS = ("model", "dataset", "callbacks")


def check_packages(config: Config) -> None:
    """Rejects functions in missing or hidden modules, before anything is loaded.

    Raises:
      UsageError: A package is missing, or a module has the name of a package of this
        project; the message names the first one. Or --script is no Python program.
    """
    script = config.model.script
    if script is not None and not pathlib.Path(script).is_file():
        raise UsageError(
            f"--script={shown(script)} is no file: give the path of a Keras program, "
            "such as trainer/task.py for python -m trainer.task."
        )
    if script is not None and script.endswith(".ipynb"):
        raise UsageError(
            f"--script={shown(script)} is a notebook: save it as a program (jupyter "
            "nbconvert --to script), or call trainers.fit in it."
        )
    if script is not None:
        _check_syntax(script)
    try:
        for name, value in _factories(config.to_dict()).items():
            factories.check_package(value, name)
        if script is not None:
            check_names(script, f"--script={script}")
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_syntax(script: str) -> None:
    """Rejects a program that Python cannot compile, such as a text."""
    try:
        content = pathlib.Path(script).read_bytes()
        # Python runs compiled files and archives of modules too.
        if content.startswith((importlib.util.MAGIC_NUMBER, b"PK")):
            return
        with warnings.catch_warnings():
            # Python warns when it runs the program.
            warnings.simplefilter("ignore")
            compile(content, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        # Python names no line with a null byte.
        line = (
            getattr(error, "lineno", None)
            or content.partition(b"\0")[0].count(b"\n") + 1
        )
        words = shown(getattr(error, "msg", str(error)))
        raise UsageError(
            f"--script={shown(script)}, line {line}, is not Python ({words}): correct "
            "it, or give the path of a Keras program."
        ) from error
    except (OSError, RecursionError, MemoryError):
        # The program reports its error when it runs.
        return


def check_given(
    settings: Mapping[str, Any], flags: Mapping[str, Any], source: str
) -> None:
    """Rejects functions that a file names and no flag names.

    A file from another person must not decide which code runs on this machine.

    Raises:
      UsageError: Only the file names a function.
    """
    # A flag may name another function than the file; any function given by a flag is
    # trusted.
    missing = {
        name: value
        for name, value in _factories(settings).items()
        if flags.get(name) is None or not factories.is_factory(flags[name])
    }
    if settings.get("script") is not None and flags.get("script") is None:
        missing["script"] = settings["script"]
    if missing:
        words = shlex.join(f"--{name}={value}" for name, value in missing.items())
        raise UsageError(
            f"{source} names functions to run, which only flags may: add {words} if "
            "you know them."
        )


def _factories(settings: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        name: settings[name]
        for name in _SETTINGS
        if factories.is_factory(settings.get(name) or "")
    }
