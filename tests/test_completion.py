"""Completion by the Tab key, in the shells themselves."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from strategies import registry
from strategies.common.errors import UsageError
from tests import processes
from trainers.cli import flags
from trainers.cli.flag_list import SHELLS, all_flags
from trainers.completion.script import script

CALL = "python -m trainers.main "

# Sets up a shell without a user's settings. Control-G prints the line as it is typed.
BEGIN = {
    "bash": r"""
        PS1= PS2=
        bind 'set enable-bracketed-paste off'
        bind 'set page-completions off'
        bind 'set completion-query-items 0'
        bind 'set bell-style none'
        bind -x '"\C-g": printf "<<%s>>\n" "$READLINE_LINE"'
    """,
    "zsh": r"""
        PS1= PS2= RPS1= PROMPT_EOL_MARK=
        unsetopt beep
        zle_highlight=(default:none paste:none)
        autoload -Uz compinit && compinit -u -D
        LISTMAX=1000
        shown() { print -r -- "<<$BUFFER>>" }
        zle -N shown
        bindkey '^G' shown
    """,
}
OPTIONS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}


@pytest.fixture(params=BEGIN)
def name(request: pytest.FixtureRequest) -> str:
    """A shell that can be typed into."""
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    return shell


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """What there is to complete paths with."""
    (tmp_path / "runs" / "four").mkdir(parents=True)
    (tmp_path / "runs" / "readme").touch()
    (tmp_path / "settings.json").touch()
    (tmp_path / "seven").touch()
    (tmp_path / "my data").mkdir()
    for name in SHELLS:
        text = script(name) + "\n"
        (tmp_path / f"script.{name}").write_text(text, encoding="utf-8")
    return tmp_path


class Terminal:
    """A shell that believes to be typed into."""

    def __init__(self, name: str, folder: pathlib.Path, before: str) -> None:
        self._name = name
        executable = shutil.which(name)
        assert executable is not None
        self._terminal, shells_side = pty.openpty()
        self._process = subprocess.Popen(
            [executable, *OPTIONS[name]],
            cwd=folder,
            # No program is found, Python neither: a script has to know it all.
            env={"PATH": "/nowhere", "HOME": str(folder), "TERM": "dumb"},
            stdin=shells_side,
            stdout=shells_side,
            stderr=shells_side,
            start_new_session=True,
        )
        os.close(shells_side)
        begin = [line.strip() for line in BEGIN[name].strip().splitlines()]
        self.run(*begin, *before.splitlines(), f"source ./script.{name}")

    def completed(self, line: str) -> str:
        """What a line has become after Tab."""
        self._type(f"{line}\t\x07")
        shown = self._read_until(r"<<(.*?)>>")
        # Empties the line.
        self._type("\x05\x15" if self._name == "bash" else "\x15")
        return shown

    def listed(self, line: str) -> set[str]:
        """What is offered when there are several ways to go on."""
        self._type(f"{line}\t\t\x07")
        text = self._read(r"<<.*?>>")
        self._type("\x05\x15" if self._name == "bash" else "\x15")
        return set(text.split())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def run(self, *lines: str) -> None:
        for line in lines:
            self._type(f"{line}\n")
        self._type("printf 'be%s\\n' gun\n")
        self._read(r"begun\r\n")

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read_until(self, pattern: str) -> str:
        found = re.search(pattern, self._read(pattern), re.S)
        assert found is not None
        return found[1].replace("\r\n", "").replace("\r", "")

    def _read(self, pattern: str) -> str:
        text = ""
        deadline = time.monotonic() + 60
        while re.search(pattern, text, re.S) is None:
            assert time.monotonic() < deadline, text
            if select.select([self._terminal], [], [], 1)[0]:
                text += os.read(self._terminal, 1 << 16).decode()
        return text


@contextlib.contextmanager
def terminal(name: str, folder: pathlib.Path, before: str = "") -> Iterator[Terminal]:
    """A shell that has read its script, after what is to come before."""
    typed_into = Terminal(name, folder, before)
    try:
        yield typed_into
    finally:
        typed_into.close()


def offered_by_fish(folder: pathlib.Path, line: str) -> set[str]:
    """Tells what fish offers, which it says without a terminal."""
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source script.fish; complete -C '{line}'"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {row.partition("\t")[0] for row in done.stdout.splitlines()}


def test_the_line_of_build_prints_a_script() -> None:
    build = (processes.ROOT / "BUILD.md").read_text(encoding="utf-8")
    printing = set(re.findall(r"python -m trainers\.main (--completion=\w+)", build))
    assert printing == {f"--completion={name}" for name in SHELLS}
    for name in SHELLS:
        done = processes.run(f"--completion={name}")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == script(name) + "\n"
        for flag in all_flags():
            assert flag.name in done.stdout


def test_another_shell_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of bash, fish, zsh"):
        flags.parse(["main", "--completion=tcsh"])


def test_what_is_typed_is_completed(name: str, folder: pathlib.Path) -> None:
    typed = {
        "--strategy=m": "--strategy=m",
        "--strategy=mi": "--strategy=mirrored ",
        "--strategy mi": "--strategy mirrored ",
        "--learning_rate_s": "--learning_rate_schedule=",
        "--verb": "--verbose ",
        "--noverb": "--noverbose ",
        "--seed=1 --opt": "--seed=1 --optimizer=",
        "--model=keras:Xc": "--model=keras:Xception ",
        "--run_dir=runs/fo": "--run_dir=runs/four/",
        "--run_dir runs/fo": "--run_dir runs/four/",
        "--config=sett": "--config=settings.json ",
    }
    with terminal(name, folder) as shell:
        for words, expected in typed.items():
            assert shell.completed(CALL + words) == CALL + expected
        # A list may go on: no space after its last item.
        words = "--strategies=tower,mi"
        assert shell.completed(CALL + words).rstrip(", ").endswith("=tower,mirrored")
        words = "--data_path=seven,set"
        assert (
            shell.completed(CALL + words).rstrip(", ").endswith("seven,settings.json")
        )


def test_what_there_is_to_choose_is_listed(name: str, folder: pathlib.Path) -> None:
    with terminal(name, folder) as shell:
        assert {*registry.names()} <= shell.listed(f"{CALL}--strategy=")
        names = {word.rstrip("=") for word in shell.listed(f"{CALL}--")}
        assert {f"--{flag.name}" for flag in all_flags()} <= names
        listed = shell.listed(f"{CALL}--strategies=tower,mirrored,")
        rest = {word.rpartition(",")[2] for word in listed}
        assert "one_device" in rest
        assert not rest & {"mirrored", "tower"}
        assert "seven" not in shell.listed(f"{CALL}--seed=")


def test_fish_offers_the_same(folder: pathlib.Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    offered = offered_by_fish(folder, f"{CALL}--")
    assert {f"--{flag.name}" for flag in all_flags()} <= {
        w.rstrip("=") for w in offered
    }
    for words, expected in {
        "--strategy=": {f"--strategy={name}" for name in registry.names()},
        "--strategy mi": {"mirrored"},
        "--strategies=tower,mi": {"--strategies=tower,mirrored"},
        "--run_dir=runs/": {"--run_dir=runs/four/"},
        "--config=sett": {"--config=settings.json"},
        "--seed=": set(),
    }.items():
        assert offered_by_fish(folder, CALL + words) == expected
    # Flags are all that this program takes; other commands take files, as before.
    assert offered_by_fish(folder, CALL) & {"seven", "settings.json"} == set()
    assert offered_by_fish(folder, "python sev") == {"seven"}


def test_other_commands_of_python_are_completed_as_before(
    name: str, folder: pathlib.Path
) -> None:
    before = {
        "bash": "_other() { COMPREPLY=(of_others); }; complete -F _other python",
        "zsh": "_other() { compadd of_others }; compdef _other python",
    }
    with terminal(name, folder, before[name]) as shell:
        for words in ("", "-m ", "-m json.tool ", "run.py -m trainers.main "):
            assert "of_others" in shell.completed(f"python {words}")
        assert shell.completed(f"{CALL}--strategy=to") == f"{CALL}--strategy=tower "
    with terminal(name, folder) as shell:
        for program in ("python", ".venv/bin/python3.12"):
            assert shell.completed(f"{program} sev").endswith("seven ")
            assert shell.completed(f"{program} -m trainers.main --ep").endswith(
                "epochs="
            )


BASH_COMPLETION = pathlib.Path("/usr/share/bash-completion/bash_completion")


@pytest.mark.skipif(
    not (BASH_COMPLETION.is_file() and shutil.which("bash")),
    reason="bash-completion is not installed",
)
@pytest.mark.parametrize("order", ["first", "last"])
def test_bash_completion_completes_other_commands(
    order: str, folder: pathlib.Path
) -> None:
    """It reads what it has for a command when that is first typed: for python, *.py."""
    load = f"source {BASH_COMPLETION}"
    (folder / "seventh.py").touch()
    with terminal("bash", folder, load if order == "first" else "") as shell:
        if order == "last":
            assert shell.completed(f"{CALL}--strategy=to") == f"{CALL}--strategy=tower "
            shell.run(load)
        assert shell.completed("python sev") == "python seventh.py "
        assert shell.completed(f"{CALL}--strategy=to") == f"{CALL}--strategy=tower "
        assert shell.completed("python sev") == "python seventh.py "
