"""Checks that tasks end with a launcher that is killed at any moment."""

import os
import pathlib
import signal
import subprocess

import pytest

from strategies.processes.parent import LAUNCHER_PID
from tests import processes
from tests.fault_injection.scenarios.launcher_killed import killed_after

pytestmark = pytest.mark.cluster


# The first moment is before tasks know the launcher, and the second while they import
# TensorFlow. tests/cluster/test_clusters.py kills the launcher while they train.
@pytest.mark.parametrize("seconds", [0.4, 2.0])
def test_nothing_is_left_of_a_launcher_that_is_killed_early(
    seconds: float, tmp_path: pathlib.Path
) -> None:
    assert killed_after(seconds, "multi_worker_mirrored", tmp_path).left == []


def test_a_task_that_finds_its_launcher_dead_ends_before_it_loads_anything(
    tmp_path: pathlib.Path,
) -> None:
    with subprocess.Popen(["true"]) as launcher:
        launcher.wait()
    done = processes.run(
        *("--model=mlp", "--train_steps=1"),
        folder=tmp_path,
        **{LAUNCHER_PID: str(launcher.pid)},
    )
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []
