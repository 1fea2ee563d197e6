"""Ends of a run that are easy to mistake for a good one."""

import errno
import os
import pathlib
import tempfile

import pytest
import tensorflow as tf

from tests import processes
from tests.processes import ROOT, result_of, train
from trainers.config.config import Config
from trainers.fault_tolerance.tensorflow_errors import refusal_of
from trainers.reporting.result import ALWAYS_FINAL

QUICK = ("--model=mlp", "--hidden_units=8", "--train_steps=20", "--jit_compile=off")


def test_weights_that_overflow_in_the_last_step_are_not_a_success(
    tmp_path: pathlib.Path,
) -> None:
    """The loss of that step, computed before it, is still finite."""
    run_dir = tmp_path / "run"
    done = processes.run(
        f"--run_dir={run_dir}",
        *QUICK,
        "--train_steps=1",
        "--optimizer=sgd",
        "--learning_rate=1e38",
        "--weight_decay=1e38",
    )
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "is not finite after step 1: training has diverged" in line
    assert result_of(run_dir)["status"] == "diverged"
    assert list((run_dir / "checkpoints").iterdir()) == []


# test_divergence_and_signals.py has a run that diverges between two summaries.
@pytest.mark.exhaustive
def test_divergence_before_the_step_that_was_to_be_observed(
    tmp_path: pathlib.Path,
) -> None:
    done = processes.run(
        f"--run_dir={tmp_path / 'run'}",
        "--model=mlp",
        "--optimizer=sgd",
        "--learning_rate=1e10",
        "--steps_per_loop=100",
    )
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 1


# ../loop/test_evaluation.py has such a run whose figures are all the same.
@pytest.mark.exhaustive
def test_a_run_killed_before_its_result_is_finished_with_all_figures(
    tmp_path: pathlib.Path,
) -> None:
    run_dir = tmp_path / "run"
    before = train(run_dir, *QUICK)
    (run_dir / "result.json").unlink()
    after = train(run_dir, *QUICK, "--resume=auto")
    assert after["final"] == before["final"]
    assert None not in [after["final"][name] for name in ALWAYS_FINAL]
    assert after["status"] == "completed"
    assert after["weights_sha256"] == before["weights_sha256"]


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: pathlib.Path) -> None:
    run_dir = tmp_path / "run"
    process = processes.start(f"--run_dir={run_dir}", *QUICK, folder=ROOT)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    assert result_of(run_dir)["status"] == "completed"


def test_the_line_of_an_error_in_the_runtime_begins_with_its_cause(
    tmp_path: pathlib.Path,
) -> None:
    """TensorFlow's message begins with the calls that made the operation."""
    done = processes.run(
        f"--run_dir={tmp_path / 'run'}",
        "--model=tests.trainers.user_code.factories:asserting",
        "--dataset=tests.trainers.user_code.factories:arrays",
        "--train_steps=2",
    )
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith(
        "error: InvalidArgumentError: assertion failed: [inputs are "
    )
    assert "the traceback is in" in line


def test_a_label_out_of_range_is_not_blamed_on_a_model_that_is_not_used() -> None:
    words = (
        "Received a label value of 5 which is outside the valid range of [0, 3).  "
        "Label values: 5 1"
    )
    error = tf.errors.InvalidArgumentError(None, None, words)
    refusal = refusal_of(error, Config().with_given(script="data/train.py"))
    assert "a label that is 5, and train.py has 3 outputs" in str(refusal)
    assert "convnet" not in str(refusal)


def test_a_system_without_room_for_temporary_files_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    folders = [str(tmp_path / "missing")]
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: folders)
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.gettempdir()
    assert "set TMPDIR to a folder" in str(refusal_of(raised.value, Config()))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a"), "ulimit -n"),
        (
            # As TensorFlow 2.21 has it.
            tf.errors.ResourceExhaustedError(
                None, None, "tb/eval/events.v2; Too many open files\n\tCreating file"
            ),
            "ulimit -n",
        ),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (
            ImportError("lib.so.2: failed to map segment from shared object"),
            "ulimit -v",
        ),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a"),
            "permit",
        ),
    ],
    ids=repr,
)
def test_a_limit_or_permission_of_the_system_is_no_bug(
    error: Exception, remedy: str
) -> None:
    assert remedy in str(refusal_of(error, Config()))


def test_a_lock_or_a_denied_connection_is_no_limit() -> None:
    locked = BlockingIOError(errno.EAGAIN, "Unable to open file (unable to lock file)")
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert refusal_of(locked, Config()) is None
    assert refusal_of(denied, Config()) is None
