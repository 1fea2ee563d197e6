"""Tests of the arguments of small tools, such as `python -m trainers.matpow`."""

import os
import sys

import pytest

from strategies.common.errors import ExitCode
from trainers.cli.tool import run_tool, tool_flags


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--nohelp=1", "--nohelp=1: does not take an argument"),
        ("--help=3", "--help=3"),
        ("--" + "a" * 1200, "Unknown command line flag 'aaaa"),
        # absl would read the file, and pass over an unknown flag.
        ("--flagfile=/etc/passwd", "Unknown command line flag 'flagfile'"),
        ("--undefok=nonsense", "Unknown command line flag 'undefok'"),
        ("train", "'train' is not a flag"),
    ],
)
def test_an_unusable_argument_is_refused_in_one_line(
    argument: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_tool(lambda values: 0, tool_flags(), ["tool", argument], "A tool.")
    assert code == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert len(line) < 300


@pytest.mark.parametrize("argument", [[], ["--help"]])
def test_a_reader_that_has_closed_the_pipe_is_no_error(
    argument: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(values: object) -> int:
        sys.stdout.write("a result")
        return ExitCode.DONE

    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert run_tool(work, tool_flags(), ["tool", *argument], "A tool.") == 0
