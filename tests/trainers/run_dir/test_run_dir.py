import fcntl
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.files import FolderLock, write_atomically
from tests import processes
from trainers.config.config import Config
from trainers.run_dir.checkpoint_manifest import Commit, write_commit
from trainers.run_dir.checkpoint_names import name_of
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.training_dir import FolderGoneError, TrainingDir, default_path


def config(path: pathlib.Path | str, **settings: Any) -> Config:
    return Config().replace(run_dir=str(path), **settings)


def begun(path: pathlib.Path, first_step: int = 0, **settings: Any) -> TrainingDir:
    """Returns the folder of a run that began and ended."""
    resume = "auto" if (path / "config.json").exists() else "never"
    wanted = config(path, resume=resume, **settings)
    folder = TrainingDir(wanted)
    folder.begin(wanted, first_step)
    folder.write_result({"status": "completed"})
    return folder


def refusal(path: pathlib.Path, **settings: Any) -> str:
    with pytest.raises(UsageError) as raised:
        TrainingDir(config(path, **settings))
    return str(raised.value)


def rows_of(path: pathlib.Path) -> list[Any]:
    text = (path / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("damaged", "step"), [((), 30), ((30,), 20), ((20, 30), 0)])
def test_a_restart_begins_at_the_newest_checkpoint_that_is_not_damaged(
    damaged: tuple[int, ...], step: int, tmp_path: pathlib.Path
) -> None:
    folder = RunDir(tmp_path)
    assert folder.saved_step() == 0
    for saved, path in ((20, folder.phase_path(1)), (30, folder.phase_path(2))):
        checkpoint = path / name_of(saved)
        checkpoint.mkdir(parents=True)
        (checkpoint / "variables.index").write_text("values")
        write_commit(checkpoint, Commit(step=saved, variables={}, state={}))
        if saved in damaged:
            (checkpoint / "variables.index").write_text("others")
    assert folder.saved_step() == step
    # Also a damaged one shows how far the run has come.
    assert folder.reached_step() == 30


# Which folders may be used


def test_deciding_on_a_folder_writes_nothing(tmp_path: pathlib.Path) -> None:
    folder = TrainingDir(config(tmp_path / "a" / "b"))
    assert folder.path == tmp_path / "a" / "b"
    assert not folder.holds_a_run
    assert processes.contents(tmp_path) == {}


def test_an_empty_folder_may_be_used(tmp_path: pathlib.Path) -> None:
    assert begun(tmp_path).holds_a_run


def test_a_link_to_a_folder_may_be_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    begun(tmp_path / "link")
    assert (tmp_path / "there" / "config.json").is_file()


def test_a_run_that_was_killed_while_it_began_leaves_a_folder_that_may_be_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*arguments: object) -> None:
        raise Killed

    path = tmp_path / "run"
    wanted = config(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", kill)
        with pytest.raises(Killed):
            TrainingDir(wanted).begin(wanted, first_step=0)
    assert list(processes.contents(path)) == [".config.json.writing"]
    begun(path)
    assert ".config.json.writing" not in processes.contents(path)


def test_a_folder_with_anything_else_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    message = refusal(tmp_path, resume="auto")
    assert f"--run_dir={tmp_path}" in message
    assert "not a run" in message


@pytest.mark.parametrize("name", ["lr[0.1]", "a\\b", "[!a]/run"])
def test_a_folder_whose_checkpoints_tensorflow_would_not_find_is_refused(
    tmp_path: pathlib.Path, name: str
) -> None:
    message = refusal(tmp_path / name)
    assert f"--run_dir={tmp_path / name}" in message
    assert "pattern" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a*b", "a?", "a[b", "a]b", "{task} %d"])
def test_checkpoints_are_read_from_a_folder_with_an_odd_name(
    tmp_path: pathlib.Path, name: str
) -> None:
    TrainingDir(config(tmp_path / name))
    path, saved = str(tmp_path / name / "variables"), tf.Variable(1.0)
    tf.train.Checkpoint(saved=saved).write(path)
    saved.assign(2.0)
    tf.train.Checkpoint(saved=saved).read(path).assert_consumed()
    assert saved.numpy() == 1.0


def test_a_run_is_continued_only_if_asked_to(tmp_path: pathlib.Path) -> None:
    begun(tmp_path)
    before = processes.contents(tmp_path)
    assert "--resume=auto" in refusal(tmp_path)
    assert processes.contents(tmp_path) == before
    wanted = config(tmp_path, resume="auto")
    assert TrainingDir(wanted).holds_a_run


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"seed": 1}, "--seed=1 (was 0)"),
        ({"global_batch_size": 8}, "--global_batch_size=8 (was 64)"),
        ({"model": "mlp"}, "--model=mlp (was convnet)"),
        ({"hidden_units": (5,)}, "--hidden_units=5 (was 128,64)"),
        ({"dropout": 0.5}, "--dropout=0.5 (was 0)"),
        ({"dtype": "float64"}, "--dtype=float64 (was float32)"),
        ({"dataset": "synthetic"}, "--dataset=synthetic (was digits)"),
        ({"eval_fraction": 0.5}, "--set=data.eval_fraction=0.5 (was 0.2)"),
        ({"optimizer": "sgd"}, "--optimizer=sgd (was adam)"),
        ({"clip_global_norm": 1.0}, "--clip_global_norm=1 (was none)"),
        ({"warmup_steps": 3}, "--warmup_steps=3 (was 0)"),
    ],
)
def test_what_would_train_something_else_is_refused(
    tmp_path: pathlib.Path, settings: dict[str, Any], difference: str
) -> None:
    begun(tmp_path)
    before = processes.contents(tmp_path)
    assert difference in refusal(tmp_path, resume="auto", **settings)
    assert processes.contents(tmp_path) == before


def test_what_does_not_change_the_training_may_change(tmp_path: pathlib.Path) -> None:
    begun(tmp_path)
    wanted = config(
        tmp_path,
        resume="auto",
        strategy="tower",
        num_replicas=2,
        train_steps=2000,
        steps_per_loop=3,
        summary_every_steps=7,
        keep_checkpoints=1,
        verbose=True,
    )
    folder = TrainingDir(wanted)
    folder.begin(wanted, first_step=0)
    assert folder.read_config() == wanted.replace(resume="never")


@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_a_schedule_keeps_the_length_it_was_made_for(
    tmp_path: pathlib.Path, schedule: str
) -> None:
    begun(tmp_path, train_steps=10, learning_rate_schedule=schedule)
    message = refusal(
        tmp_path, resume="auto", train_steps=20, learning_rate_schedule=schedule
    )
    assert "--train_steps=20 (was 10)" in message


def test_a_folder_that_became_a_run_meanwhile_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "run"
    wanted = config(path)
    slow = TrainingDir(wanted)
    begun(path)
    before = processes.contents(path)
    with pytest.raises(UsageError, match="another process"):
        slow.begin(wanted, first_step=0)
    assert processes.contents(path) == before


def test_a_folder_that_another_process_writes_to_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    begun(tmp_path)
    before = processes.contents(tmp_path)
    wanted = config(tmp_path, resume="auto")
    hold = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another process") as raised:
            TrainingDir(wanted).begin(wanted, first_step=0)
        assert f"--run_dir={tmp_path}" in str(raised.value)
        assert processes.contents(tmp_path) == before
        other.kill()
    TrainingDir(wanted).begin(wanted, first_step=0)


def test_a_forked_process_does_not_keep_the_lock_of_one_that_was_killed(
    tmp_path: pathlib.Path,
) -> None:
    text = (
        "import os, pathlib, signal, sys\n"
        "from strategies.common.files import FolderLock\n"
        "lock = FolderLock(pathlib.Path(sys.argv[1]))\n"
        "lock.acquire()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.close(1)\n"
        "    signal.pause()\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [sys.executable, "-c", text, str(tmp_path)]
    ended = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL
    child = int(ended.stdout)
    try:
        # Raises if another process holds it, and the child still lives.
        FolderLock(tmp_path).acquire()
        assert psutil.pid_exists(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_folder_is_locked_from_its_begin_to_its_result(
    tmp_path: pathlib.Path,
) -> None:
    wanted = config(tmp_path)
    folder = TrainingDir(wanted)
    folder.begin(wanted, first_step=0)
    other = FolderLock(tmp_path)
    with pytest.raises(UsageError, match="another process"):
        other.acquire()
    folder.write_result({"status": "completed"})
    other.acquire()
    other.release()


def test_a_folder_is_locked_between_two_fits_of_a_program(
    tmp_path: pathlib.Path,
) -> None:
    wanted = config(tmp_path, script="program.py")
    folder = TrainingDir(wanted)
    for first_step in (0, 7):
        folder.begin(wanted, first_step)
        folder.write_result({"status": "completed"})
        with pytest.raises(UsageError, match="another process"):
            FolderLock(tmp_path).acquire()


def test_a_folder_that_is_deleted_between_two_trainings_is_not_made_anew(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "run"
    folder = begun(path)
    shutil.rmtree(path)
    with pytest.raises(FolderGoneError, match="was deleted or moved"):
        folder.begin(config(path), first_step=7)
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_refused_and_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run"
    wanted = config(path)
    folder = TrainingDir(wanted)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UsageError, match="No space left on device") as raised:
        folder.begin(wanted, first_step=0)
    assert f"--run_dir={path}" in str(raised.value)
    assert processes.contents(tmp_path) == {}


def test_the_default_folder_tells_what_was_run_and_when() -> None:
    path = default_path(Config().replace(strategy="tower", model="mlp"))
    assert re.fullmatch(r"runs/tower-mlp-digits-\d{8}-\d{6}-\d+", str(path))


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '{"run": {"seed": "x"}}', "\0"]
)
def test_only_a_folder_with_a_sound_configuration_can_be_evaluated(
    tmp_path: pathlib.Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError) as raised:
        RunDir.of_existing(str(tmp_path)).read_config()
    assert f"--run_dir={tmp_path}" in str(raised.value)
    assert "config.json" in str(raised.value)


# Written files


def test_a_run_begins_with_its_folders_and_its_configuration(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "a" / "run"
    wanted = config(path, seed=5, resume="auto", hidden_units=(3, 4))
    folder = TrainingDir(wanted)
    folder.begin(wanted, first_step=0)
    assert set(processes.contents(path)) == {
        "checkpoints",
        "config.json",
        "logs",
        "metrics.jsonl",
        "tb",
    }
    assert folder.read_config() == wanted.replace(resume="never")
    assert folder.read_result() is None


def test_a_result_belongs_to_the_run_that_ended_last(tmp_path: pathlib.Path) -> None:
    folder = begun(tmp_path)
    folder.write_result({"status": "preempted", "steps": 3})
    assert folder.read_result() == {
        "schema_version": 1,
        "status": "preempted",
        "steps": 3,
    }
    wanted = config(tmp_path, resume="auto")
    again = TrainingDir(wanted)
    again.begin(wanted, first_step=3)
    assert again.read_result() is None


def after_later_fits(path: pathlib.Path) -> TrainingDir:
    """Returns the folder of a program whose third `fit` alone has a checkpoint."""
    folder = begun(path)
    for step in (10, 20):
        folder.append_metrics({"step": step})
    folder.phase_path(2).mkdir(parents=True)
    (folder.phase_path(3) / name_of(20)).mkdir(parents=True)
    wanted = config(path, resume="auto")
    again = TrainingDir(wanted)
    again.begin(wanted, first_step=0)
    return again


def test_rows_of_later_fits_stay_if_one_has_a_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    """Otherwise they are trained anew, and their rows may be of other steps."""
    folder = after_later_fits(tmp_path)
    for step in (10, 20, 30):
        folder.append_metrics({"step": step})
    assert [row["step"] for row in rows_of(tmp_path)] == [10, 20, 30]
    folder.write_result({"status": "failed"})
    (folder.phase_path(3) / name_of(20)).rmdir()
    begun(tmp_path, first_step=10)
    assert [row["step"] for row in rows_of(tmp_path)] == [10]


def test_a_repeated_fit_leaves_the_result_of_later_ones(
    tmp_path: pathlib.Path,
) -> None:
    folder = after_later_fits(tmp_path)
    # Pruned, which the later ones have followed, or stopped on the way to them.
    for status in ("failed", "preempted", "diverged"):
        folder.write_result({"status": status, "steps": 10})
        assert folder.read_result() == {"schema_version": 1, "status": "completed"}
    # A later one that was killed has removed the result.
    (tmp_path / "result.json").unlink()
    folder.write_result({"status": "preempted", "steps": 10})
    assert (folder.read_result() or {})["steps"] == 10


@pytest.mark.parametrize(
    "content", ["", '{"status": "comp', "\udcff", "[]", "[" * 9999]
)
def test_a_damaged_result_is_no_result(tmp_path: pathlib.Path, content: str) -> None:
    folder = begun(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    assert folder.read_result() is None


def test_numbers_that_are_not_finite_are_null(tmp_path: pathlib.Path) -> None:
    folder = begun(tmp_path)
    folder.append_metrics({"step": 1, "a": math.nan, "b": {"c": [math.inf, 2.5]}})
    folder.write_result({"final": {"loss": -math.inf}})
    assert rows_of(tmp_path) == [{"step": 1, "a": None, "b": {"c": [None, 2.5]}}]
    assert folder.read_result() == {"schema_version": 1, "final": {"loss": None}}


def test_metrics_are_added_line_by_line(tmp_path: pathlib.Path) -> None:
    folder = begun(tmp_path)
    rows = [{"step": 1, "train_loss": 0.1}, {"step": 2, "train_loss": 1 / 3}]
    for row in rows:
        folder.append_metrics(row)
    assert rows_of(tmp_path) == rows


def test_resuming_takes_back_what_came_after_the_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    folder = begun(tmp_path)
    for step in (10, 20, 30, 30, 40):
        folder.append_metrics({"step": step})
    begun(tmp_path, first_step=30)
    assert [row["step"] for row in rows_of(tmp_path)] == [10, 20, 30, 30]


def test_starting_over_takes_back_everything(tmp_path: pathlib.Path) -> None:
    begun(tmp_path).append_metrics({"step": 10})
    begun(tmp_path, first_step=0)
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 30, "train_lo',
        b'{"step": 30, "train_loss": 0.1}',
        b"\xff\xfe\n",
        b"\0\0\0\0",
        b"null\n",
        b"[30]\n",
        b'{"loss": 1}\n',
        b'{"step": "30"}\n',
        b"[" * 100_000 + b"\n",
        b"\n\n",
        '{"step": 15, "note": "\u2028"}\n'.encode(),
    ],
    ids=lambda damage: ascii(damage)[:20],
)
def test_a_torn_line_is_dropped_and_whole_ones_are_kept(
    tmp_path: pathlib.Path, damage: bytes
) -> None:
    folder = begun(tmp_path)
    folder.append_metrics({"step": 10})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(damage)
    again = begun(tmp_path, first_step=20)
    again.append_metrics({"step": 25})
    steps = [row["step"] for row in rows_of(tmp_path)]
    assert [step for step in steps if step != 15] == [10, 25]


def test_missing_metrics_are_begun_anew(tmp_path: pathlib.Path) -> None:
    begun(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    begun(tmp_path, first_step=10)
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "config.json"])
def test_a_folder_in_place_of_a_file_is_refused(
    tmp_path: pathlib.Path, name: str
) -> None:
    begun(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name / "more").mkdir(parents=True)
    before = processes.contents(tmp_path)
    assert f"--run_dir={tmp_path}" in refusal(tmp_path, resume="auto")
    assert processes.contents(tmp_path) == before


@pytest.mark.parametrize("name", ["checkpoints", "tb", "logs"])
def test_a_file_in_place_of_a_folder_is_refused(
    tmp_path: pathlib.Path, name: str
) -> None:
    begun(tmp_path)
    (tmp_path / name).rmdir()
    (tmp_path / name).write_text("")
    before = processes.contents(tmp_path)
    assert f"--run_dir={tmp_path}" in refusal(tmp_path, resume="auto")
    assert processes.contents(tmp_path) == before


# Writing


def test_a_file_is_replaced_as_a_whole(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with path.open(encoding="utf-8") as reader:
        write_atomically(path, "new")
        assert reader.read() == "old", "the old file was changed, not replaced"
    assert processes.contents(tmp_path) == {"file": b"new"}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr({"fsync": os, "replace": pathlib.Path}[step], step, fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert processes.contents(tmp_path) == {"file": b"old"}


def test_a_link_left_for_the_temporary_file_is_not_followed(
    tmp_path: pathlib.Path,
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / ".file.writing").symlink_to(outside)
    write_atomically(tmp_path / "file", "new")
    assert processes.contents(tmp_path) == {"file": b"new", "outside": b"precious"}


def test_a_file_system_without_locks_is_used_without(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    lock = FolderLock(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    lock.acquire()
    assert set(os.listdir("/proc/self/fd")) == before, "it holds the folder open"
    lock.release()
