"""Configuration fields with their help text, bounds and choices.

Flags, `--help`, the configuration file and the checks are all derived from
these fields, so that a setting is described in exactly one place. This module does
not import TensorFlow, so that a wrong flag is rejected in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strategies.common.errors import UsageError
from strategies.common.text import as_argument, shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Names of other settings, each with the values with which a setting has an effect.
UsedBy = Mapping[str, Sequence[str] | Callable[[], Sequence[str]]]

# Most characters of a name that is compared with all settings. The longest setting has
# 28; to compare 100 takes a second.
LONGEST_NAME = 40


class Bounds(typing.TypedDict, total=False):
    """Bounds of accepted numbers; `above` and `below` are themselves excluded."""

    minimum: float
    above: float
    maximum: float
    below: float


def setting(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | Callable[[], Sequence[str]] | None = None,
    why_not: Callable[[str], str | None] | None = None,
    has_flag: bool = True,
    repeatable: bool = False,
    path: str | None = None,
    used_by: UsedBy | None = None,
    most_items: int = 1_000,
    range_from: str | None = None,
    **bounds: Unpack[Bounds],
) -> Any:
    """Declares a field of a configuration.

    Args:
      default: Value when neither a flag nor the configuration file gives one.
      help: Text for `--help`, with the unit if the value has one.
      choices: Accepted words, or a function that returns them when called.
      why_not: Function from a word outside of `choices` to the problem with it, written
        as the end of a sentence that begins with the word. It returns None if the word
        is accepted nevertheless.
      has_flag: False for settings that only `--set` and the configuration file set.
      repeatable: True if each use of the flag adds one item to a list. The item is not
        split at commas.
      path: Kind of path that the value names: `folder`, `file`, or `any` of them. None
        if the value is no path.
      used_by: Other settings by name, each with the values, or patterns of values such
        as *:*, with which this field has an effect; one such value is enough. A
        function lists them when asked. None if the field always has an effect.
      most_items: Largest number of items in a list.
      range_from: Name of the setting that takes the 3 of a flag's value 3-10; this one
        takes the 10. None if the flag takes no range.
      **bounds: Bounds of numbers.
    """
    # `Field.metadata` is the place that dataclasses leave for third parties.
    metadata = {
        "help": help,
        "choices": choices,
        "why_not": why_not,
        "has_flag": has_flag,
        "repeatable": repeatable,
        "path": path,
        "used_by": used_by,
        "most_items": most_items,
        "range_from": range_from,
        "bounds": bounds,
    }
    return dataclasses.field(default=default, metadata=metadata)


def option_of(config_class: Any, field: dataclasses.Field) -> str:
    """Returns the option of a setting: `--seed`, or `--set=model.ballast`."""
    if field.metadata["has_flag"]:
        return f"--{field.name}"
    return f"--set={config_class.group}.{field.name}"


def choices_of(field: dataclasses.Field) -> tuple[str, ...] | None:
    """Returns the accepted words of a field, or None if any value is accepted."""
    # A function is called as late as here: the words may come from a scan of a folder.
    choices = field.metadata["choices"]
    return tuple(choices()) if callable(choices) else choices


@functools.cache
def field_types(config_class: type) -> Mapping[str, tuple[type, bool]]:
    """Returns the type of each field by name, and whether the field accepts None.

    A list of numbers or words (`tuple[int, ...]`) is returned as that alias.
    """
    found = {}
    for name, hint in typing.get_type_hints(config_class).items():
        optional = False
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = (a for a in typing.get_args(hint) if a is not type(None))
            optional = True
        found[name] = (hint, optional)
    return found


def check_settings(config: Any) -> None:
    """Raises UsageError for the first value that its field does not accept."""
    config_class: type = type(config)
    for field in dataclasses.fields(config):
        check_setting(config_class, field, getattr(config, field.name))


def check_setting(
    config_class: type, field: dataclasses.Field, value: Any, title: str | None = None
) -> None:
    """Raises UsageError for a value of a wrong type, out of bounds, or not a choice.

    Messages name it by `title`, or else by the option of the field.
    """
    hint, optional = field_types(config_class)[field.name]
    if value is None and optional:
        return
    name = title or option_of(config_class, field)
    _check_type(name, value, hint, optional)
    if optional and value == "":
        # Code that tests a path for truth would take an empty path for no path.
        raise UsageError(
            f"{name}= is empty: give a value after the equals sign, or none."
        )
    if isinstance(value, tuple) and len(value) > field.metadata["most_items"]:
        raise UsageError(
            f"{name}={shown(as_argument(value))} lists {len(value)} values: "
            f"give at most {field.metadata['most_items']}."
        )
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, str):
            _check_word(name, field, item)
        elif not isinstance(item, bool):
            _check_bounds(name, field, item)


_TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
}


def _check_type(name: str, value: Any, hint: Any, optional: bool) -> None:
    item = hint
    values: tuple[Any, ...] = (value,)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        # None has no accepted type, so that an empty list is refused, too.
        values = value if isinstance(value, tuple) and value else (None,)
    accepted = (int, float) if item is float else (item,)
    # Not isinstance: bool is a subclass of int, but true is no accepted number.
    if all(type(v) in accepted for v in values):
        return
    words = _TYPE_WORDS[item]
    if item is not hint:
        words = f"a list of one or more, each {words}"
    if optional:
        words += ", or none"
    received = f"'{shown(value)}'" if isinstance(value, str) else shown(value)
    raise UsageError(f"{name}={received} is not accepted: it takes {words}.")


def _check_word(name: str, field: dataclasses.Field, value: str) -> None:
    choices = choices_of(field)
    why_not: Callable[[str], str | None] | None = field.metadata["why_not"]
    problem = None
    if choices is None:
        if "\0" in value or not _is_unicode(value):
            problem = "is not accepted: it takes text in UTF-8 without null characters."
        elif field.metadata["path"] and _CONTROL.search(value):
            problem = "is not accepted: a path may have no line break or tab in it."
    elif value not in choices:
        unknown = f"is unknown; choose one of {', '.join(choices)}."
        problem = unknown if why_not is None else why_not(value)
    if problem is not None:
        raise UsageError(f"{name}={shown(value)} {problem}")


# Paths are printed, in lines that people and scripts read.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _is_unicode(text: str) -> bool:
    """Returns whether a text can be encoded as UTF-8."""
    # Python reads bytes of a command line that are not UTF-8 as lone surrogates, which
    # have no encoding.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_BOUNDS: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("minimum", "{} or more", lambda number, bound: number >= bound),
    ("above", "more than {}", lambda number, bound: number > bound),
    ("maximum", "at most {}", lambda number, bound: number <= bound),
    ("below", "less than {}", lambda number, bound: number < bound),
)

# TensorFlow counts in int64 and computes in float32, where more is infinite.
LARGEST_WHOLE_NUMBER = 2**63 - 1
_LARGEST_NUMBER = 3.4e38


def _check_bounds(name: str, field: dataclasses.Field, number: float) -> None:
    largest = LARGEST_WHOLE_NUMBER if isinstance(number, int) else _LARGEST_NUMBER
    # Every comparison with nan is false, so that it is out of range.
    holds = is_representable = -largest <= number <= largest
    words, bounds = [], field.metadata["bounds"]
    for key, phrase, within in _BOUNDS:
        bound = bounds.get(key)
        if bound is not None:
            words.append(phrase.format(bound))
            holds = holds and within(number, bound)
    if holds:
        return
    if not is_representable and "maximum" not in bounds and "below" not in bounds:
        words.append(f"at most {largest}")
    received, accepted = shown(as_argument(number)), " and ".join(words)
    raise UsageError(f"{name}={received} is out of range: give {accepted}.")
