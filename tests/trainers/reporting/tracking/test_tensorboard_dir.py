"""--tensorboard_dir: event files outside the run folder."""

import pathlib
import subprocess
import sys

import pytest

from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.common.write_errors import WriteErrorReporter
from tests.event_files import read_events
from tests.processes import PATIENCE_SECONDS, contents, environment, run
from trainers.cli import flags
from trainers.config.config import Config
from trainers.reporting.tensorboard import TRAIN, Summaries
from trainers.run_dir.run_dir import RunDir

SMALL = (
    *("--model=mlp", "--hidden_units=8", "--steps_per_loop=10"),
    # A compilation takes longer than these steps.
    "--jit_compile=off",
)

# A file system in memory ends with its process, which therefore copies the files out.
TRAIN_AND_COPY_OUT = """
import sys
import tensorflow as tf
from trainers.main import main
source, target, *arguments = sys.argv[1:]
code = main(["main", f"--tensorboard_dir={source}", *arguments])
for folder, _, names in tf.io.gfile.walk(source):
    for name in names:
        copy = f"{target}/{folder.removeprefix(source).strip('/')}"
        tf.io.gfile.makedirs(copy)
        tf.io.gfile.copy(f"{folder.rstrip('/')}/{name}", f"{copy}/{name}")
sys.exit(code)
"""


def test_event_files_are_there_and_nowhere_else_after_a_resumption(
    tmp_path: pathlib.Path,
) -> None:
    folder, events = tmp_path / "one", tmp_path / "events"
    words = [f"--run_dir={folder}", f"--tensorboard_dir={events}", *SMALL]
    words += ["--summary_every_steps=10"]
    done = run(*words, "--train_steps=30")
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (folder / "tb").exists()
    assert f"--logdir={events}/one " in done.stdout
    assert "eval/" in "".join(contents(events / "one"))
    done = run(*words, "--train_steps=50", "--resume=auto")
    assert done.returncode == 0, done.stderr[-3000:]
    losses = read_events(events / "one" / "train").scalars("loss")
    assert list(losses) == [10, 20, 30, 40, 50]
    assert read_events(events / "one" / "eval").scalars("accuracy").keys() >= {30, 50}
    assert not (folder / "tb").exists()
    assert [path.name for path in events.iterdir()] == ["one"]
    assert not (events / "one" / ".writable").exists()


@pytest.mark.exhaustive
def test_a_file_system_of_tensorflow_has_the_event_files(
    tmp_path: pathlib.Path,
) -> None:
    copied, folder = tmp_path / "copied", tmp_path / "one"
    words = ["ram://bucket/runs", str(copied), f"--run_dir={folder}", *SMALL]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_COPY_OUT, *words, "--train_steps=30"],
        env=environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr
    assert read_events(copied / "one" / "train").scalars("loss").keys() == {30}
    assert max(read_events(copied / "one" / "eval").scalars("accuracy")) == 30
    assert not (folder / "tb").exists()


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ((), "{tmp_path}/file/below"),
        pytest.param((), "foo://bucket/x", marks=pytest.mark.exhaustive),
        # No service listens on port 9.
        pytest.param((), "gs://bucket/x", marks=pytest.mark.exhaustive),
        pytest.param(
            ("--strategy=multi_worker_mirrored", "--num_workers=2"),
            "foo://bucket/x",
            marks=(pytest.mark.cluster, pytest.mark.exhaustive),
        ),
    ],
    ids=["file", "unknown", "unreachable", "cluster"],
)
def test_a_folder_that_cannot_be_written_is_refused_before_training(
    words: tuple[str, ...],
    target: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    (tmp_path / "file").touch()
    target = target.format(tmp_path=tmp_path)
    folder = tmp_path / "one"
    done = run(f"--run_dir={folder}", f"--tensorboard_dir={target}", *SMALL, *words)
    assert done.returncode == 2, done.stderr[-3000:]
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"--tensorboard_dir: {target}/one " in line
    assert not (folder / "config.json").exists()
    assert not (folder / "result.json").exists()


def test_a_remote_folder_that_fails_later_costs_a_warning(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summaries = Summaries("foo://bucket/x", WriteErrorReporter(Console()))
    summaries.scalars(TRAIN, {"loss": 1.0}, step=1)
    assert not summaries.flush()
    summaries.close()
    (warning,) = capsys.readouterr().err.splitlines()
    assert "foo://bucket/x" in warning
    assert "training goes on" in warning


def test_resuming_without_the_flag_writes_into_the_run_folder() -> None:
    path = pathlib.Path("runs/one")
    assert RunDir(path).tensorboard == "runs/one/tb"
    assert RunDir(path, "gs://bucket/runs/").tensorboard == "gs://bucket/runs/one"


def test_a_run_folder_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="--tensorboard_dir"):
        Config().replace(run_dir="gs://bucket/x")


@pytest.mark.parametrize("mode", ["evaluate", "verify", "predict", "devices"])
def test_modes_that_do_not_report_refuse_it(mode: str) -> None:
    several = [] if mode in ("evaluate", "devices") else ["--strategies=one_device"]
    words = ["--run_dir=runs/one", "--tensorboard_dir=gs://bucket/x"]
    with pytest.raises(UsageError, match=f"not used by --mode={mode}: leave it out"):
        flags.parse(["main", f"--mode={mode}", *several, *words])
