"""Tests of the words for a signal that ended a task, and of reading its output."""

import collections
import errno
import io
import pathlib
import signal
import types

import pytest

from strategies.cluster.spec import Cluster
from strategies.launcher.process import LaunchedTask


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (1, ""),
        (-signal.SIGKILL, " (SIGKILL)"),
        # Python has no name for it, and a task may die by any number.
        (-signal.SIGRTMIN - 2, f" (signal {signal.SIGRTMIN + 2})"),
    ],
)
def test_every_signal_has_words(returncode: int, words: str) -> None:
    task = LaunchedTask.__new__(LaunchedTask)
    task.process = types.SimpleNamespace(poll=lambda: returncode)  # type: ignore[assignment]
    assert task.signal_name == words


def test_a_disk_that_fails_does_not_keep_a_task_from_being_read(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task blocks once nobody reads what it prints."""

    def has_begun() -> bool:
        raise OSError(errno.EIO, "input/output error")

    task = LaunchedTask.__new__(LaunchedTask)
    task.cluster = Cluster(job="worker", addresses={"worker": ("127.0.0.1:1",)})
    task._has_begun, task._log = has_begun, tmp_path / "worker-0.log"
    task._lines = collections.deque(maxlen=2)
    task._output = io.StringIO("one\ntwo\nthree\n")
    task._read()
    assert [*task._lines] == ["two", "three"]
    assert capsys.readouterr().err == "one\ntwo\nthree\n"
