"""The only place that reads the command line.

Flags are made from the fields of the configuration groups and defined on a
`FlagValues` of our own, so that importing this package leaves absl's global
flags alone. Does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from strategies.common.errors import UsageError
from strategies.common.fields import field_types
from strategies.common.text import as_argument, shown
from trainers.cli import help, version
from trainers.cli.flag_list import Flag, all_flags, named_like
from trainers.cli.help import MODES
from trainers.completion.script import script
from trainers.config.comparison import ComparisonConfig
from trainers.config.config import Config, all_fields, without_lists
from trainers.config.file import settings_from_file
from trainers.config.prediction import PredictionConfig
from trainers.config.used_settings import (
    check_used,
    check_used_by_one,
    unused,
    without_unused,
)
from trainers.config.user_code import check_given


class HelpRequested(Exception):
    """`--help` or the like was given; the message is the text to print."""


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
    in_file, given = _settings(argv)
    if "strategies" in given and "strategy" not in given:
        in_file.pop("strategy", None)
    settings = {**_of_use(in_file, given), **given}
    if settings.get("strategies") and "strategy" not in settings:
        config = _with_one_of_its_strategies(settings)
    else:
        config = Config().replace(**settings)
    check_used(config)
    return config


def parse_arm(words: Sequence[str], base: Config) -> Config:
    """The same for the flags of one arm, which change those that all arms share.

    Raises:
      UsageError: as for `parse`, and if a flag is one that an arm cannot have.
    """
    in_file, given = _settings(["arm", *words])
    for name in (*in_file, *given):
        if name in _NOT_OF_AN_ARM:
            raise UsageError(
                f"--{name} is a setting of the whole comparison: give it outside --arm."
            )
    own = {**in_file, **given}
    config = base.replace(**own)
    check_used_by_one(own, [config.to_dict()])
    return without_unused(config)


_NOT_OF_AN_ARM = {
    *("mode", "run_dir", "resume", "seed", "verbose"),
    *(field.name for field in dataclasses.fields(ComparisonConfig)),
    *(field.name for field in dataclasses.fields(PredictionConfig)),
}


def arguments_of(config: Config) -> list[str]:
    """The flags that `parse` turns into this configuration; defaults are left out."""
    arguments = []
    for name, value in config.to_dict().items():
        field = all_fields()[name][1]
        if without_lists(value) == field.default:
            continue
        items = value if field.metadata["repeatable"] and value else [value]
        arguments += [f"--{name}={as_argument(item)}" for item in items]
    return arguments


def _settings(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file of settings says, and what the flags say."""
    values = _define()
    stray = _read(values, list(argv))
    _answer(values)
    if stray:
        raise UsageError(
            f"'{shown(stray[0])}' is not a flag: every setting is given as "
            "--name=value; --help lists them."
        )
    given = {
        name: _converted(name, field, values[name].value)
        for name, (_, field) in all_fields().items()
        if field.metadata["has_flag"] and values[name].present
    }
    in_file = {}
    if values["config"].present:
        in_file = settings_from_file(os.path.expanduser(values.config))
        check_given(in_file, given, f"--config={values.config}")
    return in_file, given


def _of_use(in_file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out of a file what belongs to a choice that the flags have changed.

    A run's config.json with --strategy=mirrored is that run under mirrored, and its
    --num_ps is of no use to it.
    """
    changed = {
        name
        for name, value in given.items()
        if value != in_file.get(name, all_fields()[name][1].default)
    }
    dropped = {
        name
        for name, deciding in unused(in_file, {**in_file, **given}).items()
        if changed & {*deciding}
    }
    return {name: value for name, value in in_file.items() if name not in dropped}


def _answer(values: flags.FlagValues) -> None:
    """Raises HelpRequested if the program is asked about itself."""
    if values.help:
        mode = values["mode"].value or ""
        known = mode in MODES
        raise HelpRequested(help.of_mode(mode) if known else help.whole())
    if values.helpshort:
        raise HelpRequested(help.short())
    if values.version:
        raise HelpRequested(version.in_words())
    shell = values["completion"].value
    if shell is not None:
        raise HelpRequested(script(shell))


def _with_one_of_its_strategies(settings: Mapping[str, Any]) -> Config:
    """A comparison's settings, checked with the first strategy that they suit.

    Some, such as --num_replicas, suit only some of the strategies that are compared.
    """
    refusals = []
    for strategy in settings["strategies"]:
        try:
            return Config().replace(**{**settings, "strategy": strategy})
        except UsageError as error:
            refusals.append(error)
    raise refusals[0]


def wants_tracebacks(argv: Sequence[str]) -> bool:
    """Whether --verbose is among the arguments, even if others are unusable."""
    return any(re.fullmatch(r"--?verbose(=(true|t|1|yes|y))?", a) for a in argv[1:])


def _read(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Sets the flags, and returns what is not a flag."""
    for argument in argv[1:]:
        # absl reads these two before any other, whether they are defined or not.
        name = re.sub(r"^--?", "", argument).partition("=")[0]
        if re.fullmatch(r"--?(flagfile|undefok)(=.*)?", argument, re.DOTALL):
            raise _unknown(name, ())
        # absl compares a name with all flags by a recursion as deep as it is long.
        if argument.startswith("-") and len(name) > _LONGEST_NAME:
            raise _unknown(name, ())
    try:
        return values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        _, _, nearest = str(error).partition("Did you mean: ")
        near = named_like(error.flagname) or nearest.rstrip(" ?").split(", ")
        raise _unknown(error.flagname, near) from error
    except flags.IllegalFlagValueError as error:
        # Words that do not fit a switch; other flags take any text here.
        argument = str(error).removeprefix("flag ").partition(": ")[0]
        name = argument.removeprefix("--").partition("=")[0]
        raise _not_a_switch(argument, name) from error
    except flags.Error as error:
        raise UsageError(f"{error}: give it as --name=value.") from error
    except ValueError as error:
        # absl's answer to --noverbose=1.
        argument = str(error).partition(" ")[0]
        name = argument.removeprefix("--no").partition("=")[0]
        raise _not_a_switch(argument, name) from error


# The longest flag has 28 characters. With 100 the comparison takes a second.
_LONGEST_NAME = 40


def _unknown(name: str, nearest: Sequence[str]) -> UsageError:
    suggestions = " or ".join(f"--{other}" for other in nearest if other)
    hint = f"did you mean {suggestions}? " if suggestions else ""
    return UsageError(f"--{shown(name)} is unknown: {hint}--help lists all flags.")


def _not_a_switch(argument: str, name: str) -> UsageError:
    if argument.removeprefix("--help=") in MODES:
        mode = argument.removeprefix("--help=")
        return UsageError(f"{argument} is not accepted: give --mode={mode} --help.")
    return UsageError(
        f"{shown(argument)} is not accepted: give --{name} or --no{name}, or "
        f"--{name}= with true or false."
    )


def _define() -> flags.FlagValues:
    values = flags.FlagValues()
    for flag in all_flags():
        if flag.is_switch:
            flags.DEFINE_flag(_switch(flag), values)
        elif flag.is_repeatable:
            flags.DEFINE_multi_string(flag.name, None, flag.help, values)
        else:
            flags.DEFINE_string(flag.name, None, flag.help, values)
    return values


def _switch(flag: Flag) -> flags.BooleanFlag:
    short = _SHORT_NAMES.get(flag.name)
    switch = flags.BooleanFlag(flag.name, bool(flag.default), flag.help, short)
    if flag.default is None and flag.is_setting:
        switch.parser = _OptionalSwitchParser()
    return switch


_SHORT_NAMES = {"help": "h"}


class _OptionalSwitchParser(flags.BooleanParser):
    """Also takes none, as other settings do that need not be given."""

    def parse(self, argument: Any) -> Any:
        return None if argument == "none" else super().parse(argument)


def _converted(name: str, field: dataclasses.Field, value: Any) -> Any:
    """The text of a flag as the type of its field."""
    config_class = all_fields()[name][0]
    hint, optional = field_types(config_class)[name]
    if field.metadata["repeatable"]:
        return None if optional and value == ["none"] else tuple(value)
    if not isinstance(value, str):
        return value
    if optional and value == "none":
        return None
    is_list = typing.get_origin(hint) is tuple
    item = typing.get_args(hint)[0] if is_list else hint
    if item is str:
        # The shell leaves a tilde alone that stands after an equals sign.
        item = os.path.expanduser
    try:
        return tuple(map(item, value.split(","))) if is_list else item(value)
    except ValueError as error:
        words = "whole numbers" if item is int else "numbers"
        words += ", separated by commas" if is_list else ""
        raise UsageError(
            f"--{name}={shown(value)} is not accepted: it takes {words}."
        ) from error
