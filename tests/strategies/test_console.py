"""Lines that a terminal keeps, and lines that it shows for a while."""

from __future__ import annotations

import re

import pytest

from strategies.common.console import Console


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
