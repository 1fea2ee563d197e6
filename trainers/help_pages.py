"""The texts of `--help`, in 80 columns: all of it, its beginning, one mode."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from strategies.settings import as_argument
from trainers.comparison.settings import ComparisonConfig
from trainers.config import all_fields
from trainers.flag_list import Flag, all_flags
from trainers.manual import EXAMPLES, MODES, PURPOSE, Example, Mode
from trainers.prediction.settings import PredictionConfig

_COLUMNS = 80
_PROGRAM = "python -m trainers.main"

_HOW_TO_READ = (
    "Flags follow. After = stands the default; where there is none, capitals say what "
    "is to be given: N a whole number, X a number, LIST values with commas between "
    "them. A switch such as --[no]verbose is off unless its text says otherwise."
)

# Only one of the modes uses them, or a few.
_OF_OTHER_MODES = (ComparisonConfig, PredictionConfig)


def whole() -> str:
    """Everything: how to begin, and all flags by subject."""
    return "\n".join(
        [*_beginning(), "", *_wrapped(_HOW_TO_READ), *_listed(all_flags())]
    )


def short() -> str:
    """How to begin, and what there are flags for."""
    headings = dict.fromkeys(flag.heading for flag in all_flags())
    subjects = f"--help lists all {len(all_flags())} flags: {'; '.join(headings)}."
    return "\n".join([*_beginning(), "", *_wrapped(subjects)])


def of_mode(name: str) -> str:
    """What concerns one mode."""
    mode = MODES[name]
    lines = [
        f"Usage: {_PROGRAM} --mode={name} [--FLAG=VALUE ...]",
        "",
        *_wrapped(f"{mode.summary} {mode.details}"),
        *_examples(
            "Examples:" if len(mode.examples) > 1 else "Example:", mode.examples
        ),
        "",
        *_wrapped(_HOW_TO_READ),
        *_listed(_flags_of(mode)),
    ]
    if mode.others:
        lines += ["", *_wrapped(mode.others)]
    return "\n".join(lines)


def _beginning() -> list[str]:
    width = max(map(len, MODES))
    return [
        f"Usage: {_PROGRAM} [--mode=MODE] [--FLAG=VALUE ...]",
        "",
        *_wrapped(PURPOSE),
        *_examples("Examples, which work as they are, one after the other:", EXAMPLES),
        "",
        "Modes, each with a page of its own, such as --mode=compare --help:",
        "",
        *(f"  --mode={name:<{width}}  {mode.summary}" for name, mode in MODES.items()),
    ]


def _flags_of(mode: Mode) -> tuple[Flag, ...]:
    if mode.own_flags:
        by_name = {flag.name: flag for flag in all_flags()}
        return tuple(by_name[name] for name in mode.own_flags)
    return tuple(
        flag
        for flag in all_flags()
        if not flag.is_setting or all_fields()[flag.name][0] not in _OF_OTHER_MODES
    )


def _examples(heading: str, examples: Iterable[Example]) -> Iterator[str]:
    yield ""
    yield heading
    for example in examples:
        yield ""
        yield f"  {example.purpose}"
        yield from _command(example.command)


def _command(command: str) -> list[str]:
    """Lines of a shell that fit, broken before flags only."""
    lines: list[str] = []
    for part in re.split(r" (?=--\w+=)(?=(?:[^']*'[^']*')*[^']*$)", command):
        if lines and len(lines[-1]) + len(part) + 1 <= _COLUMNS - 2:
            lines[-1] += f" {part}"
        else:
            lines.append(f"{' ' * (6 if lines else 4)}{part}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _listed(flags: Sequence[Flag]) -> Iterator[str]:
    for heading, group in itertools.groupby(flags, lambda flag: flag.heading):
        yield ""
        yield f"{heading}:"
        for flag in group:
            yield f"  {_head(flag)}"
            yield from _wrapped(_body(flag), indent=6)


def _head(flag: Flag) -> str:
    if flag.is_switch:
        # Of the command line: what is asked for, and never taken back.
        return f"--[no]{flag.name}" if flag.is_setting else f"--{flag.name}"
    if flag.default is not None:
        return f"--{flag.name}={as_argument(flag.default)}"
    return f"--{flag.name}={_placeholder(flag)}"


def _placeholder(flag: Flag) -> str:
    if flag.is_list:
        return "LIST"
    if flag.path is not None:
        return "FOLDER" if flag.path == "folder" else "FILE"
    return {int: "N", float: "X"}.get(flag.item, "WORD" if flag.choices else "TEXT")


def _body(flag: Flag) -> str:
    text = flag.help
    if flag.default is True:
        text += " On by default."
    if flag.choices:
        text += f" {'Any' if flag.is_list else 'One'} of: {', '.join(flag.choices)}."
    return text


def _wrapped(text: str, indent: int = 0) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=space,
        subsequent_indent=space,
        # A flag or a path that is torn apart can be neither found nor pasted.
        break_on_hyphens=False,
        break_long_words=False,
    )
