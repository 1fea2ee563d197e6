"""Tests of signals that clusters get at awkward moments.

tests/trainers/fault_tolerance/test_divergence_and_signals.py and
tests/cluster/test_task_endings.py test signals at other moments.
"""

import os
import pathlib
import signal
import sys
import time

import pytest

from strategies.common.signals import PASSED_ON
from tests import processes
from tests.fault_injection.scenarios.signals import stopped
from trainers.fault_tolerance.preemption import PreemptionSignals


# A test below has the second signal, tests/cluster/test_task_endings.py a signal to one
# task that trains, and test_random_kills.py a signal to the launcher.
@pytest.mark.cluster
@pytest.mark.exhaustive
def test_all_processes_are_told_at_once_and_a_checkpoint_is_saved(
    tmp_path: pathlib.Path,
) -> None:
    """The launcher passes on a signal that its tasks have already, as under systemd."""
    stopped("multi_worker_mirrored", "group", "steps", 0.3, tmp_path)
    assert processes.result_of(tmp_path / "run")["status"] == "preempted"


@pytest.mark.cluster
def test_the_chief_is_told_before_training_has_begun(tmp_path: pathlib.Path) -> None:
    """TensorFlow would handle the signal itself, and training would continue."""
    stopped("multi_worker_mirrored", "chief", "trace", 0.0, tmp_path)
    assert processes.last_step_of(tmp_path / "run") <= 2


def test_what_a_launcher_passes_on_is_no_second_signal() -> None:
    (passed_on, direct) = PASSED_ON[signal.SIGTERM], signal.SIGTERM
    before = signal.getsignal(direct)
    try:
        with PreemptionSignals() as signals:
            os.kill(os.getpid(), passed_on)
            assert signals.requested
            assert signals.exit_code == 143
            assert signal.getsignal(direct) != before, (
                "a direct signal would end the process"
            )
            os.kill(os.getpid(), direct)
            assert signal.getsignal(direct) == before
            os.kill(os.getpid(), passed_on)
        signals.give_back_passed_on()
        os.kill(os.getpid(), passed_on)
    finally:
        for number in PASSED_ON.values():
            signal.signal(number, signal.SIG_DFL)


# A launcher with one task that ignores all signals that can be ignored.
_STUBBORN = """
import pathlib, sys
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher
task = "import signal, time\\nfor n in range(1, 65):\\n"
task += "  if n not in (9, 19, 32, 33): signal.signal(n, signal.SIG_IGN)\\n"
task += f"open({sys.argv[1]!r}, 'w').close()\\ntime.sleep(600)"
plan = Plan(
    command=[sys.executable, "-c", task],
    addresses=local_cluster({"worker": 1}),
    server_jobs=(),
    logs=pathlib.Path("none"),
)
sys.exit(Launcher(plan, print).run())
"""


def test_a_second_signal_to_the_launcher_ends_its_tasks_at_once(
    tmp_path: pathlib.Path,
) -> None:
    ready = tmp_path / "ready"
    begin = [sys.executable, "-c", _STUBBORN, str(ready)]
    with processes.started(folder=tmp_path, begin=begin) as launcher:
        processes.wait_until(ready.exists, "its task", launcher)
        started = time.monotonic()
        launcher.terminate()
        time.sleep(0.3)
        assert launcher.poll() is None
        launcher.terminate()
        ended = processes.end_of(launcher)
    assert ended.returncode == 143
    # Without a second signal the launcher waits for 10 s.
    assert time.monotonic() - started < 9
