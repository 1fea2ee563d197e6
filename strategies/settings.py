"""A dataclass field that knows its help text, bounds and choices.

Flags, `--help`, the configuration file and the checks are all derived from
these fields, so that a setting is described in exactly one place. Nothing here
imports TensorFlow: a wrong flag is refused in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class UsageError(ValueError):
    """Something the user can correct: a flag, a file, a device that is missing.

    The message is one line that says what was received, what is accepted and
    what to change. The entry point prints it and ends with exit code 2.
    """


def setting(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | Callable[[], Sequence[str]] | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    has_flag: bool = True,
) -> Any:
    """Declares a field of a configuration.

    Args:
      default: value when neither a flag nor the configuration file gives one.
      help: one sentence for `--help`, with the unit where there is one.
      choices: accepted words, or a function that lists them when asked.
      minimum: smallest accepted number.
      above: every accepted number is larger than this.
      maximum: largest accepted number.
      below: every accepted number is smaller than this.
      has_flag: False for settings that live in the configuration file only.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "below": below,
        "has_flag": has_flag,
    }
    return dataclasses.field(default=default, metadata=metadata)


def choices_of(field: dataclasses.Field) -> tuple[str, ...] | None:
    """The accepted words of a field, or None where any value will do."""
    choices = field.metadata["choices"]
    return tuple(choices()) if callable(choices) else choices


@functools.cache
def field_types(config_class: type) -> Mapping[str, tuple[type, bool]]:
    """For each field of a configuration: its type, and whether None is allowed.

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
    """Checks every field of a configuration against its declaration.

    Raises:
      UsageError: a value has the wrong type, is out of bounds or not a choice.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        hint, optional = field_types(type(config))[field.name]
        if value is None and optional:
            continue
        _check_type(field.name, value, hint, optional)
        _check_choice(field, value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                _check_bounds(field, number)


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
        values = value if isinstance(value, tuple) else (None,)
    accepted = (int, float) if item is float else (item,)
    if all(type(v) in accepted for v in values):
        return
    words = _TYPE_WORDS[item]
    if item is not hint:
        words = f"a list of which each is {words}"
    if optional:
        words += ", or nothing"
    raise UsageError(f"--{name}={value!r} is not accepted: it takes {words}.")


def _check_choice(field: dataclasses.Field, value: Any) -> None:
    choices = choices_of(field)
    if choices is not None and value not in choices:
        raise UsageError(
            f"--{field.name}={value} is unknown; choose one of {', '.join(choices)}."
        )


_BOUNDS: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("minimum", "{} or more", lambda number, bound: number >= bound),
    ("above", "more than {}", lambda number, bound: number > bound),
    ("maximum", "at most {}", lambda number, bound: number <= bound),
    ("below", "less than {}", lambda number, bound: number < bound),
)


def _check_bounds(field: dataclasses.Field, number: float) -> None:
    holds = math.isfinite(number)
    words = []
    for key, phrase, within in _BOUNDS:
        bound = field.metadata[key]
        if bound is not None:
            words.append(phrase.format(bound))
            holds = holds and within(number, bound)
    if not holds:
        accepted = " and ".join(words) or "a finite number"
        raise UsageError(f"--{field.name}={number} is out of range: give {accepted}.")
