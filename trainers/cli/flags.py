"""Command line flags, made from the fields of the configuration.

No other module reads the command line. The flags are defined on a `FlagValues` object
of this module, so that an import leaves absl's global flags alone. This module does not
import TensorFlow.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from strategies.common.errors import UsageError
from strategies.common.fields import check_setting, field_types
from strategies.common.text import as_argument, shown
from strategies.config_checks import check_workers_left
from trainers.cli import help, version
from trainers.cli.arguments import read_arguments
from trainers.config.comparison import ComparisonConfig
from trainers.config.config import Config, without_lists
from trainers.config.file import settings_from_file
from trainers.config.groups import (
    all_fields,
    check_group,
    defaults_of,
    nearest,
    option,
)
from trainers.config.prediction import PredictionConfig
from trainers.config.program import DECIDED_UNLESS_GIVEN
from trainers.config.run import MODES_THAT_START_RUNS
from trainers.config.used_settings import (
    check_used,
    check_used_by_one,
    unused,
    without_unused,
)
from trainers.config.user_code import check_given

# Settings of the whole comparison.
_SHARED_BY_ARMS = {
    "mode", "run_dir", "resume", "seed", "verbose",
    *defaults_of(ComparisonConfig, PredictionConfig),
}  # fmt: skip
# Dashes that editors and web pages put in place of hyphens, and the minus sign.
_DASHES = re.compile("-?[\u2010-\u2015\u2212][-\u2010-\u2015\u2212]*")
# Type of a setting -> its values in words.
_WORDS = {int: "whole numbers", float: "numbers", bool: "true or false"}


class HelpRequested(Exception):
    """Request for `--help` or a similar flag; the message is the text to print."""


def parse(argv: Sequence[str]) -> Config:
    """Parses a command line into a configuration.

    Flags take precedence over `--set`, which takes precedence over the file given by
    `--config`, which takes precedence over the defaults.

    Raises:
      HelpRequested: The arguments ask for a text; the message is the text.
      UsageError: A flag is unknown, its value is not accepted, or an argument is not a
        flag.
    """
    in_file, chosen, given = _settings(argv)
    # A file such as a run's config.json always names one strategy, which would
    # contradict `--strategies` if it is none of them.
    if "strategies" in given and "strategy" not in given:
        in_file.pop("strategy", None)
    # The run of the file has filled its folder, and an experiment needs its own.
    if chosen is not None and given.get("mode") in MODES_THAT_START_RUNS:
        in_file.pop("run_dir", None)
    settings, names = _without_decisions(in_file, chosen, given)
    if settings.get("strategies") and "strategy" not in settings:
        config = _with_one_of_its_strategies(settings)
    else:
        config = Config().replace(**settings)
    check_used(config)
    return dataclasses.replace(config, given=names)


def _without_decisions(
    in_file: Mapping[str, Any], chosen: frozenset[str] | None, given: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns settings of a file and flags, and the names of the given ones.

    A run's config.json has what the run decided, and its program, perhaps in its last
    `fit`.
    """
    chosen = frozenset(in_file) if chosen is None else chosen
    settings = {**_without_obsolete(in_file, given), **given}
    has_program = settings.get("script") is not None
    of_program = DECIDED_UNLESS_GIVEN if has_program else ()
    decided = {"jit_compile", *of_program} - chosen - given.keys()
    settings = {n: v for n, v in settings.items() if n not in decided}
    return settings, chosen & settings.keys() | given.keys()


def parse_arm(words: Sequence[str], base: Config) -> Config:
    """Parses the flags of one arm of a comparison, which override what arms share.

    Raises:
      UsageError: `parse` would raise it, or an arm cannot have one of the flags.
    """
    # absl skips the first argument, the name of the program.
    in_file, chosen, given = _settings(["arm", *words])
    if chosen is not None:
        # A run's config.json has them too, of that run.
        in_file = {n: v for n, v in in_file.items() if n not in _SHARED_BY_ARMS}
    for name in (*in_file, *given):
        if name in _SHARED_BY_ARMS:
            raise UsageError(
                f"{option(name)} is a setting of the whole comparison: give it outside "
                "--arm."
            )
    own, names = _without_decisions(in_file, chosen, given)
    config = base.replace(**own)
    config = dataclasses.replace(config, given=base.given | names)
    check_used_by_one(own, [config.to_dict()])
    check_workers_left(config.strategy, config.strategy.expected_workers)
    return without_unused(config)


def arguments_of(config: Config) -> list[str]:
    """Returns the flags that `parse` turns into a configuration, without defaults."""
    arguments = []
    for name, value in config.to_dict().items():
        field = all_fields()[name].field
        # `to_dict` returns lists for tuples, as JSON does.
        is_default = without_lists(value) == field.default
        # Code of the user may have chosen another value than the default.
        overrides = config.model.is_custom and name in config.given
        if name == "script_arguments" or (is_default and not overrides):
            continue
        items = value if field.metadata["repeatable"] and value else [value]
        arguments += [f"{option(name)}={as_argument(item)}" for item in items]
    if config.model.script_arguments:
        arguments += ["--", *config.model.script_arguments]
    return arguments


def _settings(
    argv: Sequence[str],
) -> tuple[dict[str, Any], frozenset[str] | None, dict[str, Any]]:
    """Returns the settings of the file and the settings of the command line.

    Between them are the names of the file's settings that a user has chosen, if a run
    has written the file; None for all of them.
    """
    argv, script_arguments = split_arguments(argv)
    values = _define()
    stray = _read(values, argv)
    # Before the values are converted, so that `--help` works beside an unusable value.
    _answer(values)
    if stray:
        name = shown(stray[0])
        instead = "every setting is given as --name=value; --help lists them"
        if _DASHES.match(name):
            instead = f"it begins with another dash; give {_DASHES.sub('--', name)}"
        if name.endswith(".py") and not _hint_at_program(argv):
            instead = f"a program is given as --script={name}"
        raise UsageError(f"'{name}' is not a flag: {instead}{_hint_at_program(argv)}.")
    given = _given(values)
    if script_arguments:
        given["script_arguments"] = tuple(script_arguments)
    in_file: dict[str, Any] = {}
    chosen: frozenset[str] | None = None
    if values["config"].present:
        in_file, chosen = settings_from_file(os.path.expanduser(values.config))
        if given.get("mode") == "evaluate":
            # An evaluation calls no callbacks.
            in_file.pop("callbacks", None)
        check_given(in_file, given, f"--config={values.config}")
    return in_file, chosen, given


def _settings_of_flag(name: str, value: Any) -> dict[str, Any]:
    """Returns the setting of a flag by name, or both settings of a range."""
    first_name = all_fields()[name].field.metadata["range_from"]
    found = re.fullmatch(r"(\d+)-(\d+)", str(value))
    if first_name is None or found is None:
        return {name: _converted(name, value)}
    first, last = (_converted(name, number) for number in found.groups())
    # Checked here, because only here it is known which flag the number is a part of.
    title = f"the first number of {option(name)}"
    check_setting(*all_fields()[first_name], first, title)
    return {first_name: first, name: last}


def split_arguments(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Returns a command line before and after its first --."""
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _given(values: flags.FlagValues) -> dict[str, Any]:
    """Returns the settings of the command line: a flag replaces a value of --set."""
    texts = _texts_of_sets(values["set"].value or ())
    for name, (_, field) in all_fields().items():
        if field.metadata["has_flag"] and values[name].present:
            texts.pop(name, None)
            texts[name] = values[name].value
    given: dict[str, Any] = {}
    for name, value in texts.items():
        given.update(_settings_of_flag(name, value))
    return given


def _texts_of_sets(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the values of all `--set=group.name=value` by name, the last of each.

    Repeatable settings collect their values, as their flags do.
    """
    texts: dict[str, Any] = {}
    for argument in arguments:
        name, text = _named_by_set(argument)
        is_list = all_fields()[name].field.metadata["repeatable"]
        texts[name] = [*texts.get(name, ()), text] if is_list else text
    return texts


def _named_by_set(argument: str) -> tuple[str, str]:
    """Returns the name and the text of the value of one `--set=group.name=value`."""
    path, equals, text = argument.partition("=")
    group, dot, name = path.partition(".")
    if not (equals and dot):
        meant = "--set=group.name=value, such as --set=optimizer.momentum=0.8"
        if path in all_fields():
            meant = f"{option(path)}={shown(text)}"
        raise UsageError(f"--set={shown(argument)} is not accepted: give {meant}.")
    try:
        check_group(group, {name: text})
    except UsageError as error:
        raise UsageError(f"--set={shown(argument)}: {error}") from error
    return name, text


def _without_obsolete(
    in_file: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Drops from a file the settings of a choice that flags have changed.

    With a run's config.json, --strategy=mirrored asks for that run under mirrored,
    which has no use for the file's num_ps.
    """
    changed = {
        name
        for name, value in given.items()
        if value != in_file.get(name, all_fields()[name].field.default)
    }
    dropped = {
        name
        for name, deciding in unused(in_file, {**in_file, **given}).items()
        if changed & {*deciding}
    }
    return {name: value for name, value in in_file.items() if name not in dropped}


def _answer(values: flags.FlagValues) -> None:
    """Raises `HelpRequested` if a flag asks for a text such as the help."""
    if values.helpfull:
        raise HelpRequested(help.full())
    if values.help:
        raise HelpRequested(help.page(values["mode"].value, values["strategy"].value))
    if values.version:
        raise HelpRequested(version.in_words())


def _with_one_of_its_strategies(settings: Mapping[str, Any]) -> Config:
    """Returns a comparison's settings with the first of its strategies that they fit.

    Some settings, such as --num_replicas, fit only some of the compared strategies.

    Raises:
      UsageError: The settings fit none of the strategies; the error is the first one.
    """
    refusals = []
    for strategy in dict.fromkeys(settings["strategies"]):
        try:
            return Config().replace(**{**settings, "strategy": strategy})
        except UsageError as error:
            refusals.append(error)
    raise refusals[0]


def wants_tracebacks(argv: Sequence[str]) -> bool:
    """Returns whether --verbose is given, even if other arguments are unusable."""
    pattern = re.compile("--?verbose(=(true|t|1))?", re.IGNORECASE)
    return any(map(pattern.fullmatch, split_arguments(argv)[0][1:]))


def _read(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Sets the flags and returns the arguments that are not flags."""
    try:
        return read_arguments(values, argv)
    except flags.UnrecognizedFlagError as error:
        raise _unknown(error.flagname, argv) from error
    except flags.IllegalFlagValueError as error:
        # Only switches validate their value here; other flags accept any text.
        argument = str(error).removeprefix("flag ").partition(": ")[0]
        name = argument.lstrip("-").partition("=")[0]
        switch = name if name in values else name.removeprefix("no")
        raise _not_a_switch(argument, switch) from error
    except flags.Error as error:
        raise UsageError(f"{error}: give it as --name=value.") from error


def _unknown(name: str, argv: Sequence[str]) -> UsageError:
    known = [*all_fields(), *help.COMMAND_FLAGS]
    small = name.lower()
    near = [small] if small in known else nearest(small, known)
    near = near or nearest(small.removeprefix("no"), known)
    words = [option(n) if n in all_fields() else f"--{n}" for n in near]
    hint = f"did you mean {' or '.join(words)}? " if words else ""
    return UsageError(
        f"--{shown(name)} is unknown: {hint}--help lists the flags, and --helpfull all "
        f"settings{_hint_at_program(argv)}."
    )


def _hint_at_program(argv: Sequence[str]) -> str:
    """Returns the remark that an argument may be one of the program of --script."""
    has_program = any(re.match(r"--?script(=|$)", argument) for argument in argv)
    return "; arguments of the program follow after --" if has_program else ""


def _not_a_switch(argument: str, name: str) -> UsageError:
    if argument.removeprefix("--help=") in help.MODE_PAGES:
        mode = argument.removeprefix("--help=")
        return UsageError(f"{argument} is not accepted: give --mode={mode} --help.")
    return UsageError(
        f"{shown(argument)} is not accepted: give --{name} or --no{name}, or "
        f"--{name}= with true or false."
    )


def _define() -> flags.FlagValues:
    values = flags.FlagValues()
    for config_class, field in all_fields().values():
        if field.metadata["has_flag"]:
            _define_setting(values, config_class, field)
    for name, text in help.COMMAND_FLAGS.items():
        if name == "config":
            flags.DEFINE_string(name, None, text, values)
        elif name == "set":
            flags.DEFINE_multi_string(name, None, text, values)
        else:
            short_name = "h" if name == "help" else None
            flags.DEFINE_boolean(name, False, text, values, short_name=short_name)
    return values


def _define_setting(
    values: flags.FlagValues, config_class: Any, field: dataclasses.Field
) -> None:
    name, text = field.name, field.metadata["help"]
    hint, is_optional = field_types(config_class)[name]
    if hint is bool:
        switch = flags.BooleanFlag(name, bool(field.default), text)
        if is_optional:
            # BooleanFlag has no argument for a parser of another class.
            switch.parser = _OptionalSwitchParser()
        flags.DEFINE_flag(switch, values)
    elif field.metadata["repeatable"]:
        flags.DEFINE_multi_string(name, None, text, values)
    else:
        flags.DEFINE_string(name, None, text, values)


class _OptionalSwitchParser(flags.BooleanParser):
    """Parser of switches that also accept `none`, the word for an absent value."""

    def parse(self, argument: Any) -> Any:
        return None if argument == "none" else super().parse(argument)


def _converted(name: str, value: Any) -> Any:
    """Converts the value that absl has of a flag to the type of its field.

    Raises:
      UsageError: The text is not a number where the field requires one.
    """
    config_class, field = all_fields()[name]
    hint, optional = field_types(config_class)[name]
    if field.metadata["repeatable"]:
        return None if optional and value == ["none"] else tuple(value)
    if not isinstance(value, str):
        return value
    if optional and value == "none":
        return None
    is_list = typing.get_origin(hint) is tuple
    item = typing.get_args(hint)[0] if is_list else hint
    convert: Callable[[str], Any] = item
    if item is bool:
        convert = flags.BooleanParser().parse
    elif item is str:
        # The shell does not expand a tilde that follows an equals sign.
        convert = os.path.expanduser
    try:
        return tuple(map(convert, value.split(","))) if is_list else convert(value)
    except ValueError as error:
        words = _WORDS[item] + (", separated by commas" if is_list else "")
        raise UsageError(
            f"{option(name)}={shown(value)} is not accepted: it takes {words}."
        ) from error
