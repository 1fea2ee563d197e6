"""Checks the page that adds a strategy, in a copy of the project made of links."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests import planted_project, processes

PAGE = processes.ROOT / "docs" / "add_a_strategy.md"
CONFORMANCE = "tests/conformance"


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Makes a copy of the project with the files of the page at their paths."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("models", "trainers", "benchmarks", "docs"):
        (folder / name).symlink_to(processes.ROOT / name)
    for name in ("strategies", "tests", "tests/conformance"):
        (folder / name).mkdir()
        for path in (processes.ROOT / name).iterdir():
            if path.name not in ("conformance", "__pycache__"):
                (folder / name / path.name).symlink_to(path)
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`:\n\n```python\n(.*?)^```$", text, re.M | re.S)
    assert len(named) == len(blocks("python")) == 2
    for name, source in named:
        (folder / name).write_text(source, encoding="utf-8")
    return folder


def run_in(folder: pathlib.Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of the project in the folder, or a tool on it."""
    words = [sys.executable, "-m", planted_project.__name__, *command]
    return processes.run_words(words, folder)


def test_the_files_are_laid_out_and_typed_like_all_others(
    project: pathlib.Path,
) -> None:
    for name in (
        "strategies/majority_vote.py",
        "tests/conformance/test_majority_vote.py",
    ):
        for command in (("check",), ("format", "--check")):
            config = f"--config={processes.ROOT / 'pyproject.toml'}"
            done = run_in(project, "ruff", *command, config, name)
            assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_it_trains_by_the_command_of_the_page(project: pathlib.Path) -> None:
    words = shlex.split(blocks("sh")[0].replace("\\\n", " "))
    assert words[:2] == ["python", "-m"]
    done = run_in(project, *words[2:])
    assert done.returncode == 0, done.stderr
    result = processes.result_of(project / "runs" / "vote")
    assert result["strategy"] == "majority_vote"
    assert result["num_replicas"] == 3
    # There are ten classes, so a guess has an accuracy of 0.1.
    assert result["final"]["eval_accuracy"] > 0.8
    bytes_sent = result["communication"]["bytes_per_step_per_replica"]
    assert bytes_sent == 2 * 53_002 * 4 // 32
    listed = run_in(project, "trainers.main", "--help")
    assert "majority_vote" in listed.stdout


OWN_TEST = (
    *("pytest", "-q", "--rootdir=.", f"{CONFORMANCE}/test_majority_vote.py"),
    *("-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib"),
)


def test_its_own_test_passes(project: pathlib.Path) -> None:
    passed = run_in(project, *OWN_TEST)
    assert passed.returncode == 0, passed.stdout


# The page changes seldom, and its test with it.
@pytest.mark.exhaustive
def test_its_own_test_would_fail(project: pathlib.Path) -> None:
    path = project / "strategies" / "majority_vote.py"
    right = path.read_text(encoding="utf-8")
    path.write_text(right.replace("tf.sign(tf.add_n(signs))", "tf.add_n(dense)"))
    try:
        assert run_in(project, *OWN_TEST).returncode == 1
    finally:
        path.write_text(right)
