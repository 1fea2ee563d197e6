"""Usage errors: one line, exit code 2, and no file written or changed."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from unittest import mock

import pytest
import tensorflow as tf

from tests import processes
from tests.invalid_commands import (
    BEFORE_TENSORFLOW,
    DOES_NOT_FIT_TOGETHER,
    EVALUATE,
    NEEDS_DEVICES_OR_DATA,
    NO_FOLDER,
    NO_PLAIN_FILE,
    NO_SUCH_DEVICES_OR_DATA,
    NOT_USED,
    RECORDS,
    RESUME,
    RUN_EXISTS,
    SMALL_RUN,
    TOO_LARGE,
    TRAIN,
    Row,
    damage_checkpoints,
    remove_checkpoints,
    row,
)
from trainers.main import main

HAS_GPU = bool(tf.config.list_physical_devices("GPU"))


def assert_one_line(stderr: str, named: tuple[str, ...]) -> None:
    """Checks that the text is one line with an error that has all these words."""
    (line,) = stderr.splitlines()
    assert stderr == line + "\n"
    assert line.startswith("error: ")
    assert line.isprintable()
    for words in named:
        assert words in line
    assert line.endswith("."), "not a sentence"


def test_packages_that_are_missing_are_one_line() -> None:
    """Starts Python with -S, without packages, as in a shell without .venv."""
    command = [sys.executable, "-S", "-m", "trainers.main", "--strategy=mirrored"]
    done = processes.run_words(command)
    assert done.returncode == 2
    assert_one_line(done.stderr, ("has no package", "source .venv/bin/activate"))


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns an empty folder, which is the working directory."""
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def assert_refused_without_a_trace(
    wrong: Row, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong.prepare(folder)
    before = processes.contents(folder)
    assert main(["main", *wrong.arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert_one_line(captured.err, wrong.named)
    assert processes.contents(folder) == before


@pytest.mark.parametrize(
    "wrong",
    [
        *BEFORE_TENSORFLOW,
        *NOT_USED,
        *TOO_LARGE,
        *NO_PLAIN_FILE,
        *DOES_NOT_FIT_TOGETHER,
    ],
    ids=str,
)
def test_refused_in_one_line_without_a_trace(
    wrong: Row, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused_without_a_trace(wrong, folder, capfd)


def test_an_interrupt_while_flags_are_read_is_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with mock.patch("trainers.cli.flags.parse", side_effect=KeyboardInterrupt):
        assert main(["main"]) == 130
    assert capfd.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("switch", ["--verbose", "--verbose=true", "-verbose"])
def test_verbose_shows_the_traceback_before_the_line(
    switch: str, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["main", "--seed=x", switch]) == 2
    *traceback, line = capfd.readouterr().err.splitlines()
    assert traceback[0] == "Traceback (most recent call last):"
    assert any(text.startswith("ValueError: ") for text in traceback), "the cause"
    assert_one_line(line + "\n", ("--seed=x",))


@pytest.mark.parametrize("switch", ["--noverbose", "--verbose=false"])
def test_verbose_switched_off_shows_no_traceback(
    switch: str, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["main", "--seed=x", switch]) == 2
    assert_one_line(capfd.readouterr().err, ("--seed=x",))


# What a parent process may leave a program with


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_but_what_is_seen(
    closed: str, folder: pathlib.Path
) -> None:
    line = shlex.join(processes.command("--seed=x"))
    finished = subprocess.run(
        f"{line} {closed}",
        shell=True,
        env=processes.environment(),
        capture_output=True,
        timeout=processes.PATIENCE_SECONDS,
        check=False,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (2, b"", b"")


def test_a_terminal_without_the_characters_shows_escapes(folder: pathlib.Path) -> None:
    finished = processes.run("--model=é", "--seed=1", PYTHONIOENCODING="ascii")
    assert finished.returncode == 2
    assert_one_line(finished.stderr, ("--model=\\xe9",))


# Without an evaluation TensorBoard's dashboards are described when the run ends.
@pytest.mark.parametrize(
    ("what", "evaluates"),
    [("deleted", "--eval_every_steps=0"), ("moved", "--eval_every_steps=none")],
)
def test_a_run_whose_folder_is_gone_says_so_and_leaves_nothing(
    what: str, evaluates: str, folder: pathlib.Path
) -> None:
    quick = ("--model=mlp", "--hidden_units=8", "--jit_compile=off")
    flags = (*quick, evaluates, "--train_steps=1000000")
    with processes.started(*flags, "--run_dir=here", folder=folder) as process:
        run = folder / "here"
        processes.wait_until(
            lambda: bool(processes.metrics_so_far(run)), "a line of metrics", process
        )
        (folder / "here").rename(folder / "elsewhere")
        if what == "deleted":
            shutil.rmtree(folder / "elsewhere")
        ended = processes.end_of(process)
    assert ended.returncode == 2
    assert_one_line(ended.stderr, ("--run_dir=here was deleted or moved", "stopped"))
    assert not (folder / "here").exists()


# Known to be wrong only once there are devices, data, or a folder.


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the folder of a short completed run; tests copy and never change it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    finished = processes.run(*SMALL_RUN, f"--run_dir={path}", folder=path.parent)
    assert finished.returncode == 0, finished.stderr
    return path


@pytest.fixture
def run(finished_run: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Returns `run` in the working directory, a copy of a finished run."""
    shutil.copytree(finished_run, folder / "run")
    return folder / "run"


def assert_refused_by_a_process(wrong: Row, folder: pathlib.Path) -> None:
    """Checks that a command is refused in one line and changes no file."""
    before = processes.contents(folder)
    finished = processes.run(*wrong.arguments, folder=folder)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert_one_line(finished.stderr, wrong.named)
    assert processes.contents(folder) == before


@pytest.mark.slow
@pytest.mark.skipif(HAS_GPU, reason="rows are for CPUs")
@pytest.mark.parametrize("wrong", NEEDS_DEVICES_OR_DATA, ids=str)
def test_a_process_refuses_devices_and_data_in_one_line(
    wrong: Row, folder: pathlib.Path
) -> None:
    wrong.prepare(folder)
    assert_refused_by_a_process(wrong, folder)


@pytest.mark.slow
def test_a_process_shows_the_traceback_with_verbose(folder: pathlib.Path) -> None:
    finished = processes.run(*RECORDS.split(), "--verbose", folder=folder)
    assert finished.returncode == 2
    *others, line = finished.stderr.splitlines()
    assert "Traceback (most recent call last):" in others
    assert_one_line(line + "\n", ("--data_path=some.tfrecord",))
    assert processes.contents(folder) == {}


@pytest.mark.skipif(HAS_GPU, reason="rows are for CPUs")
@pytest.mark.parametrize("wrong", NO_SUCH_DEVICES_OR_DATA, ids=str)
def test_devices_and_data_are_refused_in_one_line(
    wrong: Row, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused_without_a_trace(wrong, folder, capfd)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 3 TiB"), "memory (Unable to allocate 3 TiB)"),
        (MemoryError(), "memory: lower"),
        (
            tf.errors.ResourceExhaustedError(None, None, "OOM when\nallocating"),
            "memory (OOM when allocating)",
        ),
    ],
    ids=repr,
)
def test_too_little_memory_is_something_the_user_can_change(
    error: Exception,
    words: str,
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("trainers.modes.train.assemble", fail)
    assert main(["main", *SMALL_RUN]) == 2
    assert_one_line(capfd.readouterr().err, (words, "--global_batch_size"))
    assert processes.contents(folder) == {}


def test_anything_else_is_a_bug_with_a_traceback_and_exit_code_1(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # The last call that is not the standard library's is that of `train`.
    fail = mock.Mock(side_effect=ZeroDivisionError("of ours"))
    monkeypatch.setattr("trainers.modes.train.assemble", fail)
    assert main(["main", *SMALL_RUN]) == 1
    *traceback, line = capfd.readouterr().err.splitlines()
    assert "Traceback (most recent call last):" in traceback
    assert line.startswith("error: ZeroDivisionError: of ours")


@pytest.mark.parametrize("wrong", NO_FOLDER, ids=str)
def test_a_folder_that_is_no_run_is_refused_and_left_as_it_is(
    wrong: Row, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused_without_a_trace(wrong, folder, capfd)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_without_permission_is_refused(
    mode: int, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=mode)
    if os.access(locked, os.W_OK):
        pytest.skip("this user, such as root, may write everywhere")
    assert main(["main", *SMALL_RUN, "--run_dir=locked/run"]) == 2
    assert_one_line(capfd.readouterr().err, ("--run_dir=locked/run",))
    locked.chmod(0o755)
    assert processes.contents(folder) == {"locked": None}


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="needs Linux")
def test_a_process_refuses_a_folder_that_nobody_can_make(folder: pathlib.Path) -> None:
    finished = processes.run(*SMALL_RUN, "--run_dir=/proc/run", folder=folder)
    assert finished.returncode == 2
    assert_one_line(finished.stderr, ("--run_dir=/proc/run",))
    assert not pathlib.Path("/proc/run").exists()
    assert processes.contents(folder) == {}


@pytest.mark.parametrize("wrong", RUN_EXISTS, ids=str)
def test_a_run_that_exists_is_left_byte_for_byte_as_it_is(
    wrong: Row,
    run: pathlib.Path,
    folder: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wrong.prepare(run)
    before = processes.contents(folder)
    assert main(["main", *wrong.arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    *warnings, line = captured.err.splitlines()
    assert_one_line(line + "\n", wrong.named)
    for text in warnings:
        assert text.startswith("warning: checkpoint ")
        assert text.isprintable()
    assert bool(warnings) == (wrong.prepare is damage_checkpoints)
    assert processes.contents(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        row(f"{TRAIN} --run_dir=run", "--run_dir=run", "--resume=auto"),
        row(f"{RESUME} --seed=1", "--seed=1 (was 0)"),
        row(EVALUATE, "--run_dir=run", "no checkpoint", prepare=remove_checkpoints),
    ],
    ids=str,
)
def test_a_process_leaves_a_run_that_exists_as_it_is(
    wrong: Row, run: pathlib.Path, folder: pathlib.Path
) -> None:
    wrong.prepare(run)
    assert_refused_by_a_process(wrong, folder)


def test_a_complete_run_is_left_as_it_is(
    run: pathlib.Path, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = processes.contents(folder)
    assert main(["main", *RESUME.split()]) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "nothing to do" in captured.out
    assert processes.contents(folder) == before
