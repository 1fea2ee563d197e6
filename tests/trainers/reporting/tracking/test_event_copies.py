"""--tensorboard_copy: event files on what tf.io.gfile knows."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from strategies.common.errors import UsageError
from tests.event_files import read_events
from tests.processes import PATIENCE_SECONDS, contents, environment, result_of, run
from tests.trainers.reporting.tracking.google_storage import google_storage
from trainers.cli import flags
from trainers.config.config import Config

SMALL = ("--model=mlp", "--hidden_units=8", "--train_steps=30", "--steps_per_loop=10")

# A file system in memory is gone with its process: what is in it is brought out there.
TRAIN_AND_BRING_OUT = """
import sys
import tensorflow as tf
from trainers.main import main
copy, brought, *arguments = sys.argv[1:]
code = main(["main", f"--tensorboard_copy={copy}", *arguments])
for folder, _, names in tf.io.gfile.walk(copy):
    for name in names:
        target = f"{brought}/{folder.removeprefix(copy).strip('/')}"
        tf.io.gfile.makedirs(target)
        tf.io.gfile.copy(f"{folder.rstrip('/')}/{name}", f"{target}/{name}")
sys.exit(code)
"""


def train_and_bring_out(
    copy: str, brought: pathlib.Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRAIN_AND_BRING_OUT, copy, str(brought), *flags],
        env=environment(),
        cwd=brought.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {n: c for n, c in contents(folder).items() if isinstance(c, bytes)}


def test_a_bucket_has_what_the_run_folder_has(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through TensorFlow's own client of Google Cloud Storage."""
    with google_storage(tmp_path) as storage:
        for name, value in storage.environment.items():
            monkeypatch.setenv(name, value)
        copy = "--tensorboard_copy=gs://bucket/runs/one"
        done = run(f"--run_dir={tmp_path / 'run'}", copy, *SMALL)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr
    stored = {
        name.removeprefix("bucket/runs/one/"): content
        for name, content in storage.objects.items()
        # Objects that stand for folders.
        if not name.endswith("/")
    }
    own = files(tmp_path / "run" / "tb")
    assert any(name.startswith("eval/events.") for name in own)
    assert stored == own


def test_a_bucket_that_refuses_costs_a_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with google_storage(tmp_path) as storage:
        storage.fails = True
        for name, value in storage.environment.items():
            monkeypatch.setenv(name, value)
        copy = "--tensorboard_copy=gs://bucket/runs/one"
        done = run(f"--run_dir={tmp_path / 'run'}", copy, *SMALL)
    assert done.returncode == 0
    assert result_of(tmp_path / "run")["status"] == "completed"
    (warning,) = [line for line in done.stderr.splitlines() if "copied" in line]
    assert "cannot be copied to gs://bucket/runs/one (" in warning
    assert read_events(tmp_path / "run" / "tb" / "train").scalars("loss").keys() == {30}
    assert storage.objects == {}


@pytest.mark.exhaustive
def test_a_file_system_of_tensorflows_has_what_the_run_folder_has(
    tmp_path: pathlib.Path,
) -> None:
    brought = tmp_path / "brought"
    done = train_and_bring_out(
        "ram://bucket/one", brought, f"--run_dir={tmp_path / 'run'}", *SMALL
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr
    assert files(brought) == files(tmp_path / "run" / "tb")
    assert read_events(brought / "train").scalars("loss").keys() == {30}
    assert max(read_events(brought / "eval").scalars("accuracy")) == 30


@pytest.mark.exhaustive
def test_a_copy_that_cannot_be_made_costs_a_warning(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    copy = tmp_path / "file" / "below"
    done = run(f"--run_dir={tmp_path / 'run'}", f"--tensorboard_copy={copy}", *SMALL)
    assert done.returncode == 0
    assert result_of(tmp_path / "run")["status"] == "completed"
    (warning,) = [line for line in done.stderr.splitlines() if "copied" in line]
    assert warning.startswith(f"warning: event files cannot be copied to {copy} (")
    assert read_events(tmp_path / "run" / "tb" / "train").scalars("loss").keys() == {30}


@pytest.mark.parametrize(
    "flags",
    [
        (),
        pytest.param(
            ("--strategy=multi_worker_mirrored", "--num_workers=2"),
            marks=(pytest.mark.cluster, pytest.mark.exhaustive),
        ),
    ],
    ids=["one_process", "cluster"],
)
def test_what_tensorflow_does_not_know_is_refused(
    flags: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    done = run(
        f"--run_dir={tmp_path / 'run'}", "--tensorboard_copy=foo://bucket/x", *flags
    )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(
        "error: --tensorboard_copy=foo://bucket/x is on a file system that tf.io.gfile "
        "does not know: give a folder of this machine, or one of "
    )
    assert "gs://" in line
    assert not (tmp_path / "run").exists()


def test_a_run_folder_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="is no folder of this machine"):
        Config().replace(run_dir="gs://bucket/x")


@pytest.mark.parametrize("mode", ["evaluate", "verify", "predict", "devices"])
def test_modes_that_do_not_report_refuse_it(mode: str) -> None:
    several = [] if mode in ("evaluate", "devices") else ["--strategies=one_device"]
    words = ["--run_dir=runs/one", "--tensorboard_copy=gs://bucket/x"]
    with pytest.raises(UsageError, match=f"not used by --mode={mode}: leave it out"):
        flags.parse(["main", f"--mode={mode}", *several, *words])
