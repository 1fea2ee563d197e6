"""Tests of runs on a file system that is really full."""

import errno
import functools
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from strategies.common.console import Console
from strategies.common.files import append_whole
from strategies.common.write_errors import WriteErrorReporter, disk_error, remedy_of
from tests import processes
from tests.event_files import read_events
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios import disk_full
from tests.fault_injection.scenarios.disk_full import (
    SmallDisk,
    small_disk,
    small_disks_exist,
)
from tests.processes import ROOT, command
from tests.trainers.run_dir.test_checkpoints import Run, names_in
from trainers.reporting.tensorboard import TRAIN, Summaries
from trainers.run_dir.export import Exports


@pytest.fixture
def disk(tmp_path: pathlib.Path):
    if not small_disks_exist():
        pytest.skip("no file system may be mounted here")
    with small_disk(tmp_path / "disk", 4) as made:
        yield made


def test_a_line_that_does_not_fit_is_not_begun(disk: SmallDisk) -> None:
    path = disk.seen / "metrics.jsonl"
    append_whole(path, "first\n")
    disk.fill()
    # The line is longer than the rest of the file's last page.
    with pytest.raises(OSError, match="No space left"):
        append_whole(path, "x" * 10_000 + "\n")
    assert path.read_text() == "first\n"
    disk.free()
    append_whole(path, "second\n")
    assert path.read_text() == "first\nsecond\n"


def test_summaries_are_left_out_until_there_is_space(
    disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    write_errors = WriteErrorReporter(console)
    folder = disk.seen / "tb"
    summaries = Summaries(str(folder), write_errors)
    summaries.scalars(TRAIN, {"loss": 1.0}, step=1)
    assert summaries.flush()
    disk.fill()
    for step in range(2, 6):
        # The values do not fit into the rest of the file's last page.
        values = {f"value/{number}": float(step) for number in range(300)}
        summaries.scalars(TRAIN, values, step)
        assert not summaries.flush()
    # As a disk that cannot be asked how much is free.
    moved = folder.rename(disk.seen / "moved")
    assert not summaries.flush()
    moved.rename(folder)
    files = list(folder.rglob("*.v2"))
    disk.free()
    assert summaries.flush(), "the summaries were not written again"
    write_errors.end("summaries")
    summaries.scalars(TRAIN, {"loss": 6.0}, step=6)
    assert summaries.flush()
    summaries.close()
    assert len(files) == 2, "files were made on the full disk"
    assert read_events(folder / TRAIN).scalars("loss") == {1: 1.0, 6: 6.0}
    captured = capsys.readouterr()
    (warning,) = captured.err.splitlines()
    assert "cannot be written (No space left on device); training goes on" in warning
    assert captured.out == "summaries can be written again\n"


def test_a_checkpoint_that_does_not_fit_leaves_those_before_and_nothing_else(
    disk: SmallDisk,
) -> None:
    run = Run(disk.seen / "checkpoints")
    run.save(1)
    disk.fill()
    with pytest.raises((OSError, tf.errors.OpError)) as raised:
        run.save(2)
    assert disk_error(raised.value) == "No space left on device"
    assert names_in(disk.seen / "checkpoints") == ["step-00000001"]
    again = Run(disk.seen / "checkpoints")
    again.restore()
    assert again.values() == again.values_at(1)
    assert again.warnings == []


@pytest.mark.parametrize("form", ["keras", "weights", "saved_model"])
def test_an_export_that_does_not_fit_leaves_the_one_before_and_nothing_else(
    form: str, disk: SmallDisk
) -> None:
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(1024)])
    exports = Exports(disk.seen / "export", [form], model, lambda: model)
    exports.write("best")
    before = processes.contents(disk.seen / "export")
    disk.fill()
    # Enough for a part of it.
    filler = disk.seen / "filler"
    os.truncate(filler, filler.stat().st_size - (64 << 10))
    free = shutil.disk_usage(disk.seen).free
    with pytest.raises((OSError, tf.errors.OpError)) as raised:
        exports.write("best")
    assert disk_error(raised.value) == "No space left on device"
    assert processes.contents(disk.seen / "export") == before
    assert shutil.disk_usage(disk.seen).free == free


def test_the_words_of_the_system_are_taken_out_of_those_of_h5py() -> None:
    # As h5py 3.14 has it.
    text = (
        "Can't synchronously write data (file write failed: time = Fri Nov 27 2026\n"
        ", filename = 'a.h5', errno = 28, error message = 'No space left on device')"
    )
    assert disk_error(OSError(errno.ENOSPC, text)) == "No space left on device"
    assert disk_error(OSError(errno.EIO, "503, try again")) == "503, try again"


def test_a_file_that_may_not_be_written_is_no_reason_to_end() -> None:
    words = os.strerror(errno.EACCES)
    denied = PermissionError(errno.EACCES, words, "run/metrics.jsonl")
    # As TensorFlow 2.21 has it.
    of_tensorflow = tf.errors.PermissionDeniedError(None, None, f"run/tb; {words}")
    assert disk_error(denied) == disk_error(of_tensorflow) == words
    # Of a socket or a process, which has no name.
    assert disk_error(PermissionError(errno.EACCES, words)) is None


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EFBIG, "allow larger files (ulimit -f)"),
        (errno.EROFS, "permit writing"),
        (errno.EACCES, "permit writing"),
        (errno.EIO, "repair the fault"),
    ],
)
def test_what_helps_depends_on_the_error(number: int, remedy: str) -> None:
    assert remedy_of(os.strerror(number)) == remedy


def test_other_errors_are_not_the_disk() -> None:
    for error in (ValueError("x"), FileNotFoundError(2, "No such file"), MemoryError()):
        assert disk_error(error) is None
        with pytest.raises(type(error)):
            WriteErrorReporter(Console()).attempt(
                "nothing", functools.partial(_fail, error)
            )


def _fail(error: Exception) -> None:
    raise error


def test_nothing_can_be_printed_and_the_exit_code_stays(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    program = (
        "import pathlib, sys\n"
        "from strategies.common.console import Console\n"
        "console = Console()\n"
        f"console.open_log(pathlib.Path({str(log)!r}))\n"
        "console.say('one'); console.warn('two'); console.say('three')\n"
        "console.fail('four'); console.close()\n"
        "sys.exit(3)\n"
    )
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdout=full,
            stderr=full,
            check=False,
        )
    assert done.returncode == 3
    # The log is on another disk, which is not full.
    lines = [line.split(maxsplit=2)[2] for line in log.read_text().splitlines()]
    assert lines == ["one", "warning: two", "three", "error: four"]


@pytest.mark.parametrize(
    ("flag", "exit_code"), [("--help", 2), ("--version", 2), ("--no_such_flag", 2)]
)
def test_a_command_without_a_run_ends_with_its_exit_code(
    flag: str, exit_code: int
) -> None:
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(flag), cwd=ROOT, stdout=full, stderr=full, check=False
        )
    assert done.returncode == exit_code


@pytest.mark.slow
@pytest.mark.usefixtures("disk")
def test_a_run_whose_last_checkpoint_does_not_fit_has_failed_and_can_go_on() -> None:
    (scenario,) = (s for s in disk_full.SCENARIOS if s.name == "disk-full-at-the-end")
    assert_promise_holds(scenario, seed=1)
