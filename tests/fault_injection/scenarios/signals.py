"""Scenarios of SIGTERM at any moment, to one task, all tasks, or their launcher."""

import contextlib
import pathlib
import random
import signal
import time

import psutil

from strategies.processes.forked_process import Process
from tests import processes
from tests.fault_injection.continuation import SMALL, SYNCHRONOUS, assert_continues
from tests.fault_injection.scenario import Scenario
from tests.fault_injection.scenarios.launcher_killed import end_tasks_of, tasks_of

STRATEGIES = ("one_device", "multi_worker_mirrored", "parameter_server")
# A parameter server and its workers have no steps to save: see docs/reliability.md.
RECEIVERS = ("chief", "task", "group", "launcher")
MOMENTS = ("start-up", "trace", "steps")
TERMINATED = (143, -signal.SIGTERM)
LOST = 138

# Every step is a call and a line, which shows the step that a signal met. Evaluation
# and saving take about as much time as the steps.
FLAGS = (
    *SMALL,
    "--train_steps=300",
    "--steps_per_loop=1",
    "--set=length.step_delay_milliseconds=5",
    "--summary_every_steps=1",
    "--eval_every_steps=5",
    "--checkpoint_every_steps=5",
)


def stopped(
    strategy: str, receiver: str, moment: str, delay: float, folder: pathlib.Path
) -> float:
    """Stops a run, and returns the seconds until all of its processes have ended.

    Args:
      strategy: Strategy of the run.
      receiver: One of `RECEIVERS`; without a launcher each is the process.
      moment: One of `MOMENTS`, which begins when the process starts, or has written its
        configuration, or its first line.
      delay: Seconds from the start of the moment to the signal.
      folder: Empty folder for the run.
    """
    run = folder / "run"
    flags = (*FLAGS, f"--strategy={strategy}", f"--run_dir={run}")
    with processes.started(*flags, folder=folder) as process:
        _wait_for(moment, run, process)
        time.sleep(delay)
        for pid in _receivers(process.pid, receiver):
            _send(pid, signal.SIGTERM)
        sent, seen = time.monotonic(), processes.last_step_of(run)
        done = processes.end_of(process)
        _wait_for_tasks(process.pid)
        seconds = time.monotonic() - sent
    if (run / "result.json").exists():
        status, steps = (processes.result_of(run)[key] for key in ("status", "steps"))
        if status == "completed":
            return seconds
        # If a task ends before its first step, the others count it as lost.
        if (status, steps) != ("failed", 0):
            _assert_nothing_lost(run, seen)
    assert done.returncode in TERMINATED, f"{done.returncode}: {done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return seconds


def _wait_for(moment: str, run: pathlib.Path, process: Process) -> None:
    if moment == "trace":
        processes.wait_until((run / "config.json").exists, "tracing", process)
    elif moment == "steps":
        processes.wait_until(
            lambda: processes.last_step_of(run) > 0, "the first step", process
        )


def _receivers(process: int, receiver: str) -> list[int]:
    """Returns the ids of the processes that get the signal."""
    tasks = {task.pid: task for task in tasks_of(process)}
    if receiver == "launcher" or not tasks:
        return [process]
    # A scheduler signals all processes of a group in no certain order.
    if receiver == "group":
        return [*tasks, process]
    training = sorted(pid for pid, task in tasks.items() if _trains(task))
    return (training[:1] if receiver == "chief" else training[-1:]) or [process]


def _trains(task: psutil.Process) -> bool:
    try:
        # The template from which tasks are forked has no TF_CONFIG.
        config = task.environ().get("TF_CONFIG")
    except psutil.Error:
        return False
    if config is None:
        return False
    return '"chief"' not in config or '"type": "chief"' in config


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(number)


def _wait_for_tasks(launcher: int) -> None:
    """Waits until all tasks have ended; kills them and fails after 60 s."""
    deadline = time.monotonic() + 60
    while left := tasks_of(launcher):
        if time.monotonic() > deadline:
            end_tasks_of(launcher)
            raise AssertionError(f"{len(left)} tasks outlive their launcher")
        time.sleep(0.05)


def _assert_nothing_lost(run: pathlib.Path, seen: int) -> None:
    result = processes.result_of(run)
    assert result["status"] == "preempted", f"ends as {result['status']}"
    saved = processes.checkpoints_of(run)[-1:]
    assert saved == [f"step-{result['steps']:08d}"], (
        f"steps without checkpoint: {saved}"
    )
    # The chief may write the line of a step while the signalled task is in the next
    # step. In the step after that this task informs all processes.
    assert result["steps"] <= seen + 3, f"{result['steps']} steps, signaled at {seen}"


def _attempt(chosen: random.Random, folder: pathlib.Path) -> float:
    strategy = chosen.choice(STRATEGIES)
    moment = chosen.choice(MOMENTS)
    delay = chosen.uniform(0.0, 4.0 if moment == "start-up" else 1.5)
    seconds = stopped(strategy, chosen.choice(RECEIVERS), moment, delay, folder)
    is_exact = strategy in SYNCHRONOUS
    flags = (*FLAGS, f"--strategy={strategy}")
    assert_continues(folder / "run", *flags, is_exact=is_exact)
    return seconds


def _with_a_dead_peer(chosen: random.Random, folder: pathlib.Path) -> float:
    """Kills a worker, and stops the launcher before it can notice."""
    run = folder / "run"
    flags = (*FLAGS, "--strategy=multi_worker_mirrored")
    with processes.started(*flags, f"--run_dir={run}", folder=folder) as launcher:
        _wait_for(chosen.choice(MOMENTS), run, launcher)
        time.sleep(chosen.uniform(0.3, 1.5))
        worker = chosen.randrange(2)
        processes.wait_until(
            lambda: bool(processes.tasks_found(launcher.pid, "worker", worker)),
            f"worker-{worker}",
            launcher,
        )
        processes.task_of(launcher.pid, "worker", worker).kill()
        time.sleep(chosen.uniform(0.0, 0.05))
        launcher.terminate()
        sent = time.monotonic()
        done = processes.end_of(launcher)
        seconds = time.monotonic() - sent
    assert done.returncode in (*TERMINATED, LOST), f"{done.returncode}: {done.stderr}"
    assert_continues(run, *flags)
    return seconds


def _twice(chosen: random.Random, folder: pathlib.Path) -> float:
    """Sends two signals to a launcher whose tasks are suspended and cannot end."""
    run = folder / "run"
    strategy = chosen.choice(STRATEGIES[1:])
    flags = (*FLAGS, f"--strategy={strategy}", f"--run_dir={run}")
    with processes.started(*flags, folder=folder) as launcher:
        _wait_for("steps", run, launcher)
        tasks = tasks_of(launcher.pid)
        for task in tasks:
            _send(task.pid, signal.SIGSTOP)
        launcher.terminate()
        time.sleep(chosen.uniform(0.1, 1.0))
        assert launcher.poll() is None, "ended without a second signal"
        launcher.terminate()
        sent = time.monotonic()
        done = processes.end_of(launcher)
        _wait_for_tasks(launcher.pid)
        seconds = time.monotonic() - sent
    assert done.returncode == 143, f"{done.returncode}: {done.stderr}"
    return seconds


SCENARIOS = (
    Scenario(
        name="sigterm",
        promise="exit code 143, a checkpoint at most one step later, and the same "
        "weights in the end",
        tries=50,
        attempt=_attempt,
        most_seconds=10.0,
    ),
    Scenario(
        name="sigterm-with-a-dead-peer",
        promise="exit code 143 or 138, and the same weights in the end",
        tries=10,
        attempt=_with_a_dead_peer,
        most_seconds=15.0,
    ),
    Scenario(
        name="sigterm-twice",
        promise="all tasks end at once",
        tries=5,
        attempt=_twice,
        most_seconds=2.0,
    ),
)
