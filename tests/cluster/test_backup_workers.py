"""What becomes of synchronous training when one worker is slow."""

from __future__ import annotations

import pathlib
import signal
import time

import pytest

from tests import processes
from tests.further import further

pytestmark = pytest.mark.cluster

NUM_WORKERS = 3
FROZEN_SECONDS = 2.5
FLAGS = (
    "--strategy=parameter_server",
    "--update=sync",
    f"--num_workers={NUM_WORKERS}",
    "--model=mlp",
    "--hidden_units=8",
    "--train_steps=1000000",
    "--summary_every_steps=5",
    "--histogram_every_steps=none",
    # So that the workers do not fight for cores, of which there are fewer.
    "--step_delay_milliseconds=10",
)


def steps_within(run: pathlib.Path, seconds: float) -> int:
    before = processes.last_step_of(run)
    time.sleep(seconds)
    return processes.last_step_of(run) - before


# Without one there is no pace at all.
@pytest.mark.parametrize("backup_workers", [further(0), 1])
def test_one_backup_worker_restores_the_pace(
    backup_workers: int, tmp_path: pathlib.Path
) -> None:
    run = tmp_path / "run"
    flags = (*FLAGS, f"--backup_workers={backup_workers}", f"--run_dir={run}")
    with processes.started(*flags, folder=tmp_path) as launcher:
        processes.wait_until(
            lambda: processes.last_step_of(run) > 20, "its first steps", launcher
        )
        pace = steps_within(run, FROZEN_SECONDS)
        worker = processes.task_of(launcher.pid, "worker", NUM_WORKERS - 1)
        worker.suspend()
        try:
            # What was under way when it stopped may still be written.
            time.sleep(1)
            pace_without_it = steps_within(run, FROZEN_SECONDS)
        finally:
            worker.resume()
        processes.wait_until(
            lambda: steps_within(run, 0.5) > 0, "steps afterwards", launcher
        )
        launcher.send_signal(signal.SIGTERM)
        ended = processes.end_of(launcher)
    assert ended.returncode == 143, ended.stderr
    assert_can_be_evaluated(run)
    result = processes.result_of(run)
    assert result["staleness"]["max"] == 0
    assert result["steps"] == result["attempted_steps"]
    assert result["traits"]["synchronous"]
    assert result["traits"]["matches_one_device"] == (backup_workers == 0)
    if backup_workers:
        # Half, because a busy machine has its ups and downs; without a backup it is 0.
        assert pace_without_it > pace / 2
        assert result["late_gradients"] > 0
    else:
        assert pace_without_it == 0
        assert result["late_gradients"] == 0


def assert_can_be_evaluated(run: pathlib.Path) -> None:
    """By one process, to which the flags of a cluster mean nothing."""
    done = processes.run("--mode=evaluate", f"--run_dir={run}")
    assert done.returncode == 0, done.stderr
