"""Every flag of the command line: what it takes, and under which heading it stands.

Help and the parser are made from this list, and the list from
the fields of the configuration groups. Does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator
from typing import Any

from strategies.common.fields import choices_of, field_types
from trainers.config.config import all_fields


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag.

    Attributes:
      name: without dashes.
      heading: what it and its neighbours are about.
      help: one or more sentences.
      item: type of its value, or of each of them; bool for a switch.
      default: what it is when it is not given; None if that depends.
      choices: accepted words; none where any value will do.
      is_list: whether it takes several values, separated by commas.
      is_repeatable: whether each use adds a value.
      path: `file`, `folder` or `any`, if it takes the name of one.
      is_setting: whether it is a setting of a run, and may stand in a file.
    """

    name: str
    heading: str
    help: str
    item: type
    default: Any = None
    choices: tuple[str, ...] = ()
    is_list: bool = False
    is_repeatable: bool = False
    path: str | None = None
    is_setting: bool = True

    @property
    def is_switch(self) -> bool:
        return self.item is bool


_HEADING = "This command line"

_OF_THE_COMMAND_LINE = (
    Flag(
        name="config",
        heading=_HEADING,
        help="JSON file of settings by name, such as a run's config.json; flags "
        "override it.",
        item=str,
        path="file",
        is_setting=False,
    ),
    Flag(
        name="help",
        heading=_HEADING,
        help="Show this text (also -h). With --mode, only what concerns that mode.",
        item=bool,
        is_setting=False,
    ),
    Flag(
        name="helpshort",
        heading=_HEADING,
        help="Show only how to begin: modes and examples.",
        item=bool,
        is_setting=False,
    ),
    Flag(
        name="version",
        heading=_HEADING,
        help="Print the versions of this program and of what it stands on.",
        item=bool,
        is_setting=False,
    ),
)


# More would say nothing.
_MOST_SUGGESTIONS = 4


def named_like(name: str) -> tuple[str, ...]:
    """Flags that a name may be short for: `lr`, `batch_size`, `workers`.

    Returns:
      Those with all its words and the fewest others, and those whose words begin with
      its letters. None if that would be many.
    """
    words = set(name.replace("-", "_").split("_"))
    known = [flag.name.split("_") for flag in all_flags()]
    with_words = [parts for parts in known if words <= {*parts}]
    fewest = min(map(len, with_words), default=0)
    found = [
        "_".join(parts)
        for parts in known
        if (len(parts) > 1 and name == "".join(part[0] for part in parts if part))
        or (parts in with_words and len(parts) == fewest)
    ]
    return tuple(found) if len(found) <= _MOST_SUGGESTIONS else ()


@functools.cache
def all_flags() -> tuple[Flag, ...]:
    """In the order of `--help`."""
    return (*_of_settings(), *_OF_THE_COMMAND_LINE)


def _of_settings() -> Iterator[Flag]:
    group, heading = None, ""
    for name, (config_class, field) in all_fields().items():
        if config_class is not group:
            group, heading = config_class, (config_class.__doc__ or "").strip(". \n")
        heading = field.metadata["heading"] or heading
        if field.metadata["has_flag"]:
            yield _of_field(name, heading, config_class, field)


def _of_field(
    name: str, heading: str, config_class: type, field: dataclasses.Field
) -> Flag:
    hint, _ = field_types(config_class)[name]
    is_list = typing.get_origin(hint) is tuple
    return Flag(
        name=name,
        heading=heading,
        help=field.metadata["help"],
        item=typing.get_args(hint)[0] if is_list else hint,
        default=field.default,
        choices=choices_of(field) or (),
        is_list=is_list and not field.metadata["repeatable"],
        is_repeatable=field.metadata["repeatable"],
        path=field.metadata["path"],
    )
