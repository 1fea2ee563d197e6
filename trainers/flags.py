"""The only place that reads the command line.

Flags are made from the fields of the configuration groups and defined on a
`FlagValues` of our own, so that importing this package leaves absl's global
flags alone.
"""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections.abc import Sequence
from typing import Any

from absl import flags

from strategies.settings import UsageError, choices_of, field_types
from trainers.config import Config, all_fields, config_from_file

_DESCRIPTION = """\
Trains a Keras model under a distribution strategy.

  python -m trainers.main --strategy=mirrored
  python -m trainers.main --strategy=tower --num_replicas=4 --run_dir=runs/four
  python -m trainers.main --mode=evaluate --run_dir=runs/four
"""


class HelpRequested(Exception):
    """`--help` was given; the message is the text to print."""


def parse(argv: Sequence[str]) -> Config:
    """Turns a command line into a configuration.

    Values come from the flags, then from the file given by --config, then from
    the defaults.

    Args:
      argv: the program's name and its arguments.

    Raises:
      HelpRequested: with the help text.
      UsageError: a flag is unknown or its value unusable, or there is an argument
        that is not a flag.
    """
    values = _define()
    try:
        stray = values(list(argv))[1:]
    except flags.Error as error:
        raise UsageError(_one_line(error)) from error
    if values.help:
        raise HelpRequested(help_text())
    if stray:
        raise UsageError(
            f"{stray[0]!r} is not a flag: every setting is given as --name=value."
        )
    given = {
        name: _converted(name, field, values[name].value)
        for name, (_, field) in all_fields().items()
        if field.metadata["has_flag"] and values[name].present
    }
    base = config_from_file(values.config) if values.config else Config()
    return base.replace(**given)


def help_text() -> str:
    """All flags, grouped by subject, in 80 columns."""
    lines = [_DESCRIPTION]
    subject = None
    for name, (config_class, field) in all_fields().items():
        if config_class is not subject:
            subject = config_class
            lines.append(f"\n{(config_class.__doc__ or '').strip()}")
        if field.metadata["has_flag"]:
            lines.extend(_help_of(name, config_class, field))
    lines.append("\nHow settings are given.")
    lines.extend(_entry("--config=FILE", _CONFIG_HELP))
    return "\n".join(lines)


_CONFIG_HELP = (
    "JSON file of settings by name, such as a run's config.json; flags go before it."
)


def _help_of(name: str, config_class: type, field: dataclasses.Field) -> list[str]:
    hint, _ = field_types(config_class)[name]
    text = field.metadata["help"]
    choices = choices_of(field)
    if choices:
        text += f" One of: {', '.join(choices)}."
    if hint is bool:
        return _entry(f"--[no]{name}", text)
    default = "" if field.default is None else _as_text(field.default)
    return _entry(f"--{name}={default}", text)


def _entry(head: str, text: str) -> list[str]:
    indent = " " * 6
    body = textwrap.wrap(text, 80, initial_indent=indent, subsequent_indent=indent)
    return [f"  {head}", *body]


def _define() -> flags.FlagValues:
    values = flags.FlagValues()
    for name, (config_class, field) in all_fields().items():
        if not field.metadata["has_flag"]:
            continue
        hint, _ = field_types(config_class)[name]
        if hint is bool:
            flags.DEFINE_boolean(name, field.default, field.metadata["help"], values)
        else:
            flags.DEFINE_string(name, None, field.metadata["help"], values)
    flags.DEFINE_string("config", None, _CONFIG_HELP, values)
    flags.DEFINE_boolean("help", False, "Show this text.", values, short_name="h")
    return values


def _converted(name: str, field: dataclasses.Field, value: Any) -> Any:
    """The text of a flag as the type of its field."""
    config_class = all_fields()[name][0]
    hint, optional = field_types(config_class)[name]
    if not isinstance(value, str):
        return value
    if optional and value == "none":
        return None
    if typing.get_origin(hint) is tuple:
        (item, *_) = typing.get_args(hint)
        return tuple(_number(name, part, item) for part in value.split(","))
    return _number(name, value, hint)


def _number(name: str, text: str, kind: type) -> Any:
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError as error:
        words = "whole numbers" if kind is int else "numbers"
        raise UsageError(
            f"--{name}={text} is not accepted: it takes {words}."
        ) from error


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{text.rstrip('.')}. --help lists all flags."
