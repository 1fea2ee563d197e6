"""Lines that a terminal keeps, and lines that it shows for a while."""

from __future__ import annotations

import re

import pytest

from strategies.common.console import Console


def shown(
    terminal: str,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Returns the output of two steps and of a line that a terminal would replace."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    console = Console()
    console.start_progress(0, 1000)
    console.narrate("finished  tower")
    for step in (580, 1000):
        console.advance(
            *(step, 1000), loss=0.0097, examples_per_second=22131.7, step_seconds=0.0028
        )
    console.stop_progress()
    return capsys.readouterr().out


def test_a_terminal_that_keeps_all_lines_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = shown("dumb", 80, monkeypatch, capsys)
    assert "finished  tower" in printed
    assert "train | step    1000/1000 | loss 0.0097" in printed


def test_a_narrow_terminal_shows_the_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "1000/1000" in shown("xterm", 40, monkeypatch, capsys)


@pytest.mark.parametrize("remains", [False, True])
def test_a_terminal_keeps_what_remains_and_no_other_line(
    remains: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Console().live(lambda: "running   tower", remains=remains):
        pass
    printed = capsys.readouterr().out
    assert "running   tower" in printed
    # The cursor goes up to the line, and the line is erased, at the end.
    is_erased = re.search(r"\x1b\[1A\x1b\[2K$", printed) is not None
    assert is_erased is not remains
