"""Scripts for the Tab key, written from the list of flags.

A script holds every flag and its words, so that nothing starts Python while somebody
types. What is the same for any program of this kind is in `completion.*` beside this
file; marks in capitals between two @ are replaced.
"""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from strategies.common.errors import UsageError
from trainers.cli.flag_list import SHELLS, Flag, all_flags

_FOLDER = pathlib.Path(__file__).parent
_COMMANDS = ("python", "python3", *(f"python3.{minor}" for minor in range(10, 14)))
_MOST_CHARACTERS_OF_A_DESCRIPTION = 70


def script(shell: str) -> str:
    """The text that a shell reads to complete this program's command line.

    Raises:
      UsageError: there is none for that shell.
    """
    make_marks = _MARKS.get(shell)
    if make_marks is None:
        raise UsageError(
            f"--completion={shell} is unknown; choose one of {', '.join(SHELLS)}."
        )
    marks = {"COMMANDS": " ".join(_COMMANDS), **make_marks()}
    template = (_FOLDER / f"completion.{shell}").read_text(encoding="utf-8")
    text = re.sub("@([A-Z]+)@", lambda found: marks[found[1]], template)
    return text.removesuffix("\n")


def _of_bash() -> Mapping[str, str]:
    spellings = [s for flag in all_flags() for s in _spellings(flag)]
    by_kind: dict[tuple[str, str], list[str]] = {}
    for flag in all_flags():
        if not flag.is_switch:
            kind = (_kind(flag), " ".join(_words(flag)))
            by_kind.setdefault(kind, []).append(flag.name)
    cases = [
        f"    {' | '.join(names)}) kind={kind} words={shlex.quote(words)} ;;"
        for (kind, words), names in by_kind.items()
        if kind
    ]
    return {"FLAGS": " ".join(spellings), "CASES": "\n".join(cases)}


def _spellings(flag: Flag) -> Iterator[str]:
    """As it is completed: with an equals sign if a value follows."""
    if not flag.is_switch:
        yield f"--{flag.name}="
        return
    yield f"--{flag.name}"
    if flag.is_setting:
        yield f"--no{flag.name}"


def _kind(flag: Flag) -> str:
    """What bash looks for: words or paths, in the plural for a list of them."""
    kind = "word" if _words(flag) else {"any": "file"}.get(flag.path or "", flag.path)
    # --data_path is one string for the program, and a list for who writes it.
    return f"{kind}s" if kind and (flag.is_list or flag.path == "any") else kind or ""


def _words(flag: Flag) -> tuple[str, ...]:
    return (*flag.choices, *flag.suggestions)


def _of_zsh() -> Mapping[str, str]:
    lines = [
        shlex.quote(f"{spelling.rstrip('=')}{_described(flag, spelling)}")
        for flag in all_flags()
        for spelling in _spellings(flag)
    ]
    return {"SPECS": "\n".join(f"  {line}" for line in lines)}


def _described(flag: Flag, spelling: str) -> str:
    description = re.sub(r"([\[\]:\\])", r"\\\1", _description(flag))
    if flag.is_switch:
        return f"[{description}]"
    # - for "directly after the equals sign or as the next word".
    repeats = "=" if spelling.endswith("=") else ""
    return f"{repeats}[{description}]:{flag.name}:{_action_of_zsh(flag)}"


def _action_of_zsh(flag: Flag) -> str:
    words = [word.replace(":", r"\:") for word in _words(flag)]
    actions = {
        "": " ",
        "word": f"({' '.join(words)})",
        "words": f"_sequence compadd - {' '.join(_words(flag))}",
        "folder": "_files -/",
        "folders": "_sequence -s , _files -/",
        "file": "_files",
        "files": "_sequence -s , _files",
    }
    return actions[_kind(flag)]


def _of_fish() -> Mapping[str, str]:
    lines = []
    for flag in all_flags():
        description = _quoted_for_fish(_description(flag))
        takes = "" if flag.is_switch else f" {_arguments_of_fish(flag)}"
        for spelling in _spellings(flag):
            name = spelling.strip("-=")
            lines.append(
                "    complete -c $command -n __trainers_main_is_called "
                f"-l {name}{takes} -d {description}"
            )
    return {"FLAGS": "\n".join(lines)}


def _arguments_of_fish(flag: Flag) -> str:
    words = " ".join(_words(flag))
    listed = "(__fish_complete_list , '{}')".format
    arguments = {
        "": "-x",
        "word": f"-x -a {_quoted_for_fish(words)}",
        "words": f'-x -a "{listed(f"__trainers_main_words {words}")}"',
        "folder": "-x -a '(__fish_complete_directories)'",
        "folders": "-x -a '(__fish_complete_directories)'",
        "file": "-r -F",
        "files": "-r -F",
    }
    return arguments[_kind(flag)]


def _quoted_for_fish(text: str) -> str:
    """Within its single quotes only the backslash and the quote mean something."""
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"


def _description(flag: Flag) -> str:
    """The first sentence of its help, or the beginning of a long one."""
    sentence = re.split(r"(?<=[.]) ", flag.help, maxsplit=1)[0].rstrip(".")
    if len(sentence) <= _MOST_CHARACTERS_OF_A_DESCRIPTION:
        return sentence
    return sentence[:_MOST_CHARACTERS_OF_A_DESCRIPTION].rsplit(" ", 1)[0] + " ..."


_MARKS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "bash": _of_bash,
    "fish": _of_fish,
    "zsh": _of_zsh,
}
