"""Checks that a faulty file in the folder of strategies is one line that names it."""

import pathlib
from collections.abc import Iterator

import pytest

from strategies import registry
from trainers.main import main

_TRAITS = "Traits(synchronous=True, multi_process=False, matches_one_device=True)"


@pytest.fixture
def folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    """Makes a folder with the project's strategies, in which the registry looks."""
    for path in registry._FOLDER.glob("*.py"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(registry, "_FOLDER", tmp_path)
    registry._declarations.cache_clear()
    yield tmp_path
    registry._declarations.cache_clear()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"  name = NAME\n  traits = {_TRAITS}", "class Median sets no name = '...'"),
        (f"  traits = {_TRAITS}", "class Median sets no name = '...'"),
        ("  name = 'median'", "class Median sets no name = '...'"),
        ("  name = 'median'\n  traits = Traits(synchronous=FLAG)", "in literals"),
        ("  name = 'median", "is no Python program (unterminated string"),
        ("  name = 'median'\n  traits = Traits(fast=True)", "argument 'fast'"),
    ],
)
@pytest.mark.parametrize("argument", ["--help", "--num_workers=2"])
def test_a_faulty_file_is_one_line(
    folder: pathlib.Path,
    text: str,
    words: str,
    argument: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (folder / "median.py").write_text(f"class Median(Strategy):\n{text}\n")
    assert main(["", argument]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: strategies/median.py")
    assert words in line


def test_a_name_of_two_strategies_is_one_line(
    folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of them would have been trained as the other, without a word."""
    text = f"class Tower(Strategy):\n  name = 'tower'\n  traits = {_TRAITS}\n"
    (folder / "tower_copy.py").write_text(text)
    assert main(["", "--strategy=tower"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: strategies/tower_copy.py: class Tower has the name")
    assert "'tower' of strategies/tower.py" in line
