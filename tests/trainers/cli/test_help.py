"""The pages of --help: that they can be read, and that what they show is so."""

from __future__ import annotations

import pathlib
import re
import shlex

import pytest

import models
from strategies import registry
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from tests import processes
from trainers.cli import flags
from trainers.cli.flag_list import all_flags
from trainers.cli.help import MODES
from trainers.cli.role import cluster_of
from trainers.config.config import Config, all_fields

PAGES = ["--help", "--helpshort", *(f"--mode={mode} --help" for mode in MODES)]


def page_of(words: str) -> str:
    with pytest.raises(flags.HelpRequested) as shown:
        flags.parse(["main", *words.split()])
    return str(shown.value)


def headings_by_flag(page: str) -> list[tuple[str, str]]:
    """Every flag that a page explains, with the heading it stands under."""
    found = []
    heading = None
    for line in page.splitlines():
        if re.fullmatch(r"\w.*:", line):
            heading = line
        entry = re.match(r"  --(?:\[no\])?(\w+)(=\S+)?$", line)
        if entry is not None and heading is not None:
            found.append((entry[1], heading))
    return found


def commands_on(page: str) -> list[str]:
    """Every command of the program that a page shows, as a shell reads it."""
    joined = re.sub(r" \\\n +", " ", page)
    return re.findall(r"^    (python -m trainers\.main .*)$", joined, re.M)


@pytest.mark.parametrize("words", PAGES)
def test_no_line_is_longer_than_a_terminal_of_80_columns(words: str) -> None:
    assert [line for line in page_of(words).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", PAGES)
def test_a_page_is_plain_text_without_trailing_spaces(words: str) -> None:
    page = page_of(words)
    assert re.findall(r"[^\x20-\x7e\n]", page) == []
    assert re.findall(r" +$", page, re.M) == []


def test_every_flag_has_one_entry_under_one_heading() -> None:
    shown = headings_by_flag(page_of("--help"))
    assert sorted(name for name, _ in shown) == sorted(f.name for f in all_flags())
    settings = {
        n for n, (_, field) in all_fields().items() if field.metadata["has_flag"]
    }
    accepted = settings | {"config", "help", "helpshort", "version"}
    assert {name for name, _ in shown} == accepted
    assert len({heading for _, heading in shown}) > 10
    by_heading: dict[str, list[str]] = {}
    for name, heading in shown:
        by_heading.setdefault(heading, []).append(name)
    # More under one heading are a list that nobody reads.
    assert max(map(len, by_heading.values())) <= 14


def test_it_names_every_choice_and_default() -> None:
    page = page_of("--help")
    for name in (*registry.names(), *models.names(), *MODES):
        assert name in page
    for line in ("  --learning_rate=0.001", "  --hidden_units=128,64"):
        assert line in page.splitlines()
    for switch in (flag for flag in all_flags() if flag.default is True):
        entry = page.partition(f"--[no]{switch.name}\n")[2].partition("\n  --")[0]
        assert "On by default." in " ".join(entry.split())


def test_the_beginning_is_usage_examples_and_modes() -> None:
    begin = page_of("--help").partition("\n\nFlags follow.")[0]
    assert begin.startswith("Usage: python -m trainers.main ")
    assert len(begin.splitlines()) < 45, "more than a screen"
    assert page_of("--helpshort").startswith(begin)
    assert 4 <= len(commands_on(begin)) <= 6
    shown = re.findall(r"^  --mode=(\w+) +(\S.*)$", begin, re.M)
    assert [name for name, _ in shown] == list(MODES)


@pytest.mark.parametrize("words", PAGES)
def test_every_example_is_accepted(words: str) -> None:
    for command in commands_on(page_of(words)):
        config = flags.parse(shlex.split(command)[2:])
        assert isinstance(config, Config)
        # The checks of what this process would be: of a cluster, its launcher.
        assert cluster_of(config, {}) in (None, Cluster())


@pytest.mark.parametrize("mode", MODES)
def test_the_page_of_a_mode_is_about_it(mode: str) -> None:
    page = page_of(f"--mode={mode} --help")
    assert page.startswith("Usage: python -m trainers.main ")
    assert MODES[mode].summary.split()[0] in page
    own = commands_on(page)
    assert own
    for command in own:
        assert flags.parse(shlex.split(command)[2:]).run.mode == mode
    names = [name for name, _ in headings_by_flag(page)]
    assert len(names) == len(set(names)) > 4
    assert set(names) < {flag.name for flag in all_flags()}
    for name in MODES[mode].own_flags:
        assert name in names


def test_help_on_a_mode_that_is_not_there_is_all_of_it() -> None:
    assert page_of("--mode=compaer --help") == page_of("--help")


def test_a_file_of_settings_cannot_ask_for_help(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"helpshort": true}', encoding="utf-8")
    with pytest.raises(UsageError, match="is not a setting"):
        flags.parse(["main", f"--config={path}"])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_examples_work_one_after_the_other(tmp_path: pathlib.Path) -> None:
    program = shlex.join(processes.command())
    for command in commands_on(page_of("--help")):
        line = command.replace("python -m trainers.main", program, 1)
        done = processes.run_words(["sh", "-c", line], tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr[-2000:]}"
    assert processes.result_of(tmp_path / "runs" / "first")["steps"] == 2000
