"""Lines that a terminal keeps, and lines that it shows for a while."""

import os
import pathlib
import pty
import re
import sys

import pytest

from strategies.common.console import Console, print_error


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


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_stream_that_has_gone_away_ends_nothing(
    is_closed: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that hangs up, and a file that a program has closed."""
    log = tmp_path / "run.log"
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    terminal, other_end = pty.openpty()
    with open(other_end, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        console = Console()
        console.open_log(log)
        console.start_progress(0, 10)
        os.close(terminal)
        if is_closed:
            stream.close()
        with pytest.raises(ValueError if is_closed else OSError):
            os.write(stream.fileno(), b"any line")
        console.warn("above the bar")
        console.advance(5, 10, loss=0.1, examples_per_second=1.0, step_seconds=1.0)
        console.stop_progress()
        console.warn("below the bar")
        with console.live(lambda: "running   tower", remains=True):
            console.say("one line")
        console.close()
        print_error("the last line")
    # A date and a time come first.
    logged = [line.split(" ", 2)[2] for line in log.read_text().splitlines()]
    assert logged == ["warning: above the bar", "warning: below the bar", "one line"]


def test_a_program_may_take_standard_output_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    monkeypatch.setattr(sys, "stdout", None)
    console.close()
    console.warn("the end")
    assert "the end" in capsys.readouterr().err


def test_stacks_are_shown_if_the_log_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.open_log(pathlib.Path("/dev/full"))
    console.dump_stacks()
    assert "test_stacks_are_shown_if_the_log_is_full" in capfd.readouterr().err
    console.close()
