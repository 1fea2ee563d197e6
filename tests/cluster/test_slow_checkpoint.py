"""Tests of a checkpoint that takes longer than peers wait within a step."""

import contextlib
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests import processes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        shutil.which("strace") is None,
        reason="strace, which slows a disk down, is missing",
    ),
]

PEER_TIMEOUT_SECONDS = 2
# A checkpoint calls fsync five times: for two files of variables, for commit.json and
# for two folders.
FSYNC_SECONDS = 1
FLAGS = (
    "--strategy=multi_worker_mirrored",
    "--model=mlp",
    "--hidden_units=8",
    "--train_steps=1000000",
    "--checkpoint_every_steps=200",
    "--set=report.histogram_every_steps=none",
    f"--set=strategy.peer_timeout_seconds={PEER_TIMEOUT_SECONDS}",
)


@contextlib.contextmanager
def slow_disk(process: int) -> Iterator[None]:
    """Delays every fsync of a process by `FSYNC_SECONDS`."""
    command = ["strace", "-f", "-qq", "-o/dev/null", f"-p{process}", "-etrace=fsync"]
    slower = f"-einject=fsync:delay_exit={FSYNC_SECONDS * 1_000_000}"
    with subprocess.Popen([*command, slower], stderr=subprocess.DEVNULL) as strace:
        try:
            yield
        finally:
            strace.send_signal(signal.SIGTERM)


def test_the_others_wait_for_the_chief_to_save(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    with processes.started(*FLAGS, f"--run_dir={run}", folder=tmp_path) as launcher:
        processes.wait_until(
            lambda: len(processes.checkpoints_of(run)) > 0, "a checkpoint", launcher
        )
        chief = processes.task_of(launcher.pid, "worker", 0)
        with slow_disk(chief.pid):
            saved = processes.last_step_of(run)
            processes.wait_until(
                # 500 steps have two checkpoints, and the disk is slow during all of
                # the second.
                lambda: processes.last_step_of(run) > saved + 500,
                "steps after a slow checkpoint",
                launcher,
            )
        launcher.send_signal(signal.SIGTERM)
        assert processes.end_of(launcher).returncode == 143
