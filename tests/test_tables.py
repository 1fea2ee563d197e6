"""Checks that tables have 80 columns in a file, a pipe and a terminal."""

import pytest
from tensorboard.plugin_util import markdown_to_safe_html

from strategies.common.text import table_lines
from trainers.reporting.tensorboard import table

ROWS = [["arm", "ms", "[bold]"], ["one_device", "1.5", "-"], ["tower", "10.25", "7"]]


def test_numbers_are_aligned_on_the_right_and_names_on_the_left() -> None:
    assert table_lines(ROWS) == [
        "arm            ms  [bold]",
        "one_device    1.5       -",
        "tower       10.25       7",
    ]
    assert table_lines(ROWS, numbers=False)[2] == "tower       10.25  7"


def test_a_long_name_is_wrapped_and_keeps_every_character() -> None:
    name = "a_name_without_a_space_" * 5
    lines = table_lines([["arm", "ms"], [name, "1.5"]])
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("  1.5")
    words = [line.removesuffix("1.5").strip() for line in lines[1:]]
    assert "".join(words) == name


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_table_has_no_escape_sequences(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = table_lines(ROWS)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("COLUMNS", "20")
    assert table_lines(ROWS) == plain


def test_a_bar_in_a_setting_does_not_end_its_cell_in_tensorboard() -> None:
    page = markdown_to_safe_html(table(("setting", "value"), [("run_dir", "a|b")]))
    assert "<td>a|b</td>" in page
