"""Tests of the commands that experiments and the Python API start."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from strategies.common.errors import StopRequested
from strategies.processes.parent import LAUNCHER_PID
from strategies.processes.starter import ProcessStarter
from trainers.config.config import Config
from trainers.experiments.command import measure_run
from trainers.experiments.measurement import measure, started
from trainers.fault_tolerance.preemption import PreemptionSignals

COLD = ProcessStarter()
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_command_ends_with_its_block() -> None:
    with started(SLEEP, subprocess.DEVNULL, os.environ, COLD) as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM
    with (
        pytest.raises(ZeroDivisionError),
        started(SLEEP, subprocess.DEVNULL, os.environ, COLD) as process,
    ):
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGTERM


def test_a_command_knows_which_process_it_ends_with(tmp_path: pathlib.Path) -> None:
    show = f"import os; print(os.environ['{LAUNCHER_PID}'], os.getsid(0), os.getpid())"
    log = tmp_path / "log"
    command = (sys.executable, "-c", show)
    measured = measure(command, log, lambda: False, os.environ, COLD)
    assert measured is not None
    assert measured.exit_code == 0
    launcher, session, own = map(int, log.read_text().split())
    assert launcher == os.getpid()
    assert session == own


def test_measurements_are_written_unless_a_run_was_stopped(
    tmp_path: pathlib.Path,
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    config = Config().replace(run_dir=str(run), model="nothing:Model")
    with PreemptionSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested) as stop:
            measure_run(config, log, signals, COLD)
    assert stop.value.exit_code == 143
    assert not run.exists()
    assert measure_run(config, log, PreemptionSignals(), COLD).exit_code == 2
    assert (run / "measured.json").is_file()
