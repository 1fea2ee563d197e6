"""Where names of a user's functions may come from. Nothing here imports TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models import factories
from strategies.common.errors import UsageError
from trainers.config.config import Config

# Settings that may name one.
_SETTINGS = ("model", "dataset")


def check_packages(config: Config) -> None:
    """Refuses names of packages that are not there, before anything is loaded.

    Raises:
      UsageError: with the first of them.
    """
    for name, value in _factories(config.to_dict()).items():
        try:
            factories.check_package(value, name)
        except ValueError as error:
            raise UsageError(str(error)) from error


def check_given(
    settings: Mapping[str, Any], flags: Mapping[str, Any], source: str
) -> None:
    """Refuses names of functions that no flag gives.

    A file that has come from somebody else must not decide which code runs here.

    Args:
      settings: of a file.
      flags: as they were given, or settings that they came to.
      source: the file, for the message.

    Raises:
      UsageError: a name is in the file only.
    """
    missing = {
        name: value
        for name, value in _factories(settings).items()
        if flags.get(name) is None or not factories.is_factory(flags[name])
    }
    if missing:
        words = " ".join(f"--{name}={value}" for name, value in missing.items())
        raise UsageError(
            f"{source} names functions to run, which only flags may: add {words} if "
            "you know them."
        )


def _factories(settings: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        name: settings[name]
        for name in _SETTINGS
        if factories.is_factory(settings.get(name, ""))
    }
