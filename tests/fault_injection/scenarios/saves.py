"""A scenario of SIGKILL inside of a save."""

import pathlib
import random
import time

from strategies.processes.forked_process import Process
from tests import processes
from tests.fault_injection.continuation import SMALL, assert_continues, newest_intact
from tests.fault_injection.scenario import Scenario

FLAGS = (
    *SMALL,
    "--train_steps=200",
    "--summary_every_steps=10",
    "--checkpoint_every_steps=5",
    "--set=report.keep_checkpoints=2",
)
# Strategies with their weights in the draw. Most tries need only one process. In the
# others workers have equal state, or each has different state.
STRATEGIES = {
    ("--strategy=one_device",): 8,
    ("--strategy=multi_worker_mirrored",): 1,
    (
        "--strategy=multi_worker_mirrored",
        "--average=parameters",
        "--sync_every_steps=4",
    ): 1,
}
_LOOK_SECONDS = 0.0005


def killed_inside_a_save(
    chosen: random.Random, folder: pathlib.Path, *flags: str
) -> bool:
    """Kills a run soon after a save begins; returns whether it was saving."""
    checkpoints = folder / "run" / "checkpoints"
    with processes.started(f"--run_dir={folder}/run", *flags, folder=folder) as process:
        for _ in range(chosen.randint(1, 5)):
            seconds = _one_save(checkpoints, process)
        _wait_for_save(checkpoints, process)
        time.sleep(chosen.uniform(0.0, seconds))
        before = newest_intact(folder / "run") or 0
        # With several tasks the chief saves. Its launcher is killed too, because it
        # would restart the chief.
        if "--strategy=one_device" not in flags:
            processes.task_of(process.pid, "worker", 0).kill()
        process.kill()
        process.wait()
    after = newest_intact(folder / "run") or 0
    assert after >= before, f"the checkpoint of step {before} is gone"
    return any(checkpoints.glob(".*"))


def _one_save(checkpoints: pathlib.Path, process: Process) -> float:
    """Waits for a save, and returns its duration in seconds."""
    _wait_for_save(checkpoints, process)
    begin = time.monotonic()
    while any(checkpoints.glob(".writing-*")):
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - begin


def _wait_for_save(checkpoints: pathlib.Path, process: Process) -> None:
    while not any(checkpoints.glob(".writing-*")):
        assert process.poll() is None, f"ended with {process.returncode}"
        time.sleep(_LOOK_SECONDS)


def _attempt(chosen: random.Random, folder: pathlib.Path) -> None:
    (strategy,) = chosen.choices(list(STRATEGIES), list(STRATEGIES.values()))
    flags = (*FLAGS, *strategy)
    killed_inside_a_save(chosen, folder, *flags)
    assert_continues(folder / "run", *flags)


SCENARIOS = (
    Scenario(
        name="killed-inside-a-save",
        promise="the last checkpoint or the one before is whole, from there the run "
        "goes on to the same weights, and nothing is left over",
        tries=100,
        attempt=_attempt,
    ),
)
