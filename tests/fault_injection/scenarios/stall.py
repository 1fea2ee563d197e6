"""Scenarios of runs that make no progress, and print their stacks."""

import pathlib
import random
import signal
import sys
import time

from tests import processes
from tests.cluster.tasks import Tasks, cluster
from tests.fault_injection.scenario import Scenario

# Timeouts that are longer than one task, or three, take to trace on a busy machine.
_ALONE_SECONDS, _CLUSTER_SECONDS = 6.0, 12.0
FLAGS = (
    "--model=mlp",
    "--hidden_units=8",
    "--train_steps=1000000",
    "--summary_every_steps=20",
    "--set=report.histogram_every_steps=none",
    "--jit_compile=off",
)
_PATIENCE = f"--set=guard.stall_timeout_seconds={_CLUSTER_SECONDS:g}"
# The timeout is below the 10 s after which TensorFlow's heartbeats report that some
# task of MultiWorkerMirroredStrategy is gone, without its name.
_LESS_THAN_HEARTBEATS = "--set=guard.stall_timeout_seconds=5"
# A call of the inner loop takes longer than the timeout; its steps count as progress.
_STEPS_PER_CALL = 60
_SECONDS_PER_STEP = 0.15

# The real program, whose input is slow at every step, and sleeps for ever at one step.
_STUCK = f"""
import sys, time
import numpy as np
import tensorflow as tf
from trainers.inputs.batches import SourceBatches

def sleeps_in_the_input(step):
    print(step, flush=True)
    time.sleep({_SECONDS_PER_STEP} if step < int(sys.argv[1]) else 3600)
    return step

def spans(self, *arguments):
    def slowed(batch):
        step = tf.numpy_function(sleeps_in_the_input, [batch.step], tf.int64)
        return batch._replace(step=tf.ensure_shape(step, []))

    # Spans have one step each, as with large examples.
    return whole(self, *arguments).unbatch().map(slowed).batch(1)

whole, SourceBatches.spans = SourceBatches.spans, spans
from trainers.main import main
sys.exit(main(["main", *sys.argv[2:]]))
"""


def _input_sleeps(chosen: random.Random, folder: pathlib.Path) -> float:
    """Suspends a slow run, which continues, and then lets its input sleep."""
    stuck_at = chosen.randint(45, _STEPS_PER_CALL - 1)
    stopped_at = chosen.randint(5, 20)
    run = folder / "run"
    flags = (
        *FLAGS,
        f"--set=guard.stall_timeout_seconds={_ALONE_SECONDS:g}",
        f"--steps_per_loop={_STEPS_PER_CALL}",
        f"--run_dir={run}",
    )
    (folder / "stuck.py").write_text(_STUCK, encoding="utf-8")
    begin = [sys.executable, "-m", "stuck", str(stuck_at)]
    with processes.started(*flags, folder=folder, begin=begin) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == str(stopped_at):
                process.send_signal(signal.SIGSTOP)
                time.sleep(_ALONE_SECONDS + 1)
                process.send_signal(signal.SIGCONT)
            if line.strip() == str(stuck_at):
                break
        start = time.monotonic()
        ended = processes.end_of(process)
        seconds = time.monotonic() - start
    assert ended.returncode == 138, f"exit code {ended.returncode}: {ended.stderr}"
    assert_one_line(
        ended.stderr,
        f"step {stuck_at + 1} has not been reached by this run, which for ",
    )
    assert_stacks(run / "logs/chief-0.log", "in sleeps_in_the_input")
    return seconds


def _worker_frozen(chosen: random.Random, folder: pathlib.Path) -> float:
    """Suspends a worker where peers may be silent for long; it is named."""
    flags = (
        "--strategy=multi_worker_mirrored",
        "--set=strategy.peer_timeout_seconds=300",
        _LESS_THAN_HEARTBEATS,
    )
    with cluster(folder, {"worker": 3}, *FLAGS, *flags) as tasks:
        survivors = ("worker-0", chosen.choice(("worker-1", "worker-2")))
        (frozen,) = tasks.started.keys() - set(survivors)
        seconds = _freeze(chosen, tasks, frozen, survivors)
        steps = processes.last_step_of(tasks.run_dir)
        line = tasks.started["worker-0"].error_lines()[-1]
        named = f"reached by {frozen} at {tasks.address(frozen)}, which does not answer"
        assert named in line, line
        reached = int(line.partition("step ")[2].partition(" ")[0])
        assert reached > steps, f"metrics have step {steps}: {line}"
        assert_stacks(tasks.run_dir / "logs/worker-0.log", "in run_loop")
        assert_stacks(tasks.started[survivors[1]].errors, "in run_loop")
    return seconds


def _server_frozen(chosen: random.Random, folder: pathlib.Path) -> float:
    """Suspends a parameter server; workers without a program print stacks too."""
    flags = (
        "--strategy=parameter_server",
        "--set=strategy.peer_timeout_seconds=300",
        _PATIENCE,
    )
    num_tasks = {"chief": 1, "worker": 1, "ps": 1}
    with cluster(folder, num_tasks, *FLAGS, *flags) as tasks:
        seconds = _freeze(chosen, tasks, "ps-0", ("chief-0", "worker-0"))
        line = tasks.started["chief-0"].error_lines()[-1]
        named = f"reached by ps-0 at {tasks.address('ps-0')}, which does not answer"
        assert named in line, line
        assert_stacks(tasks.run_dir / "logs/chief-0.log", "in run_loop")
        assert_stacks(tasks.started["worker-0"].errors, "in serve")
    return seconds


def _freeze(
    chosen: random.Random, tasks: Tasks, frozen: str, survivors: tuple[str, ...]
) -> float:
    """Suspends a task while it trains, and waits for the others to end with 138."""
    tasks.wait_until(lambda: processes.last_step_of(tasks.run_dir) > 0, "its metrics")
    time.sleep(chosen.random())
    tasks.started[frozen].send(signal.SIGSTOP)
    start = time.monotonic()
    codes = {name: tasks.started[name].exit_code() for name in survivors}
    assert codes == dict.fromkeys(survivors, 138), f"exit codes {codes}"
    return time.monotonic() - start


def assert_one_line(stderr: str, words: str) -> None:
    """Asserts that standard error has one error, with certain words."""
    # TensorFlow was imported before the program could silence it, and prints lines too.
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, f"{len(lines)} errors: {stderr}"
    assert words in lines[0], stderr


def assert_stacks(log: pathlib.Path, *functions: str) -> None:
    """Asserts that a log has Python's stacks with certain functions."""
    text = log.read_text(encoding="utf-8")
    assert "most recent call first" in text, f"no stacks in {log.name}: {text[-500:]}"
    for function in functions:
        assert f"{function}\n" in text, f"not {function} in {log.name}: {text}"


# Time to find the silent task, to inform the others, and to end.
_SECONDS_TO_END = 6.0

SCENARIOS = (
    Scenario(
        name="stall-input",
        promise="a run whose input sleeps for ever prints its stacks and ends with 138",
        tries=20,
        attempt=_input_sleeps,
        most_seconds=_ALONE_SECONDS + _SECONDS_TO_END,
    ),
    Scenario(
        name="stall-worker",
        promise="a frozen worker is named with the step; stacks of the others; 138",
        tries=10,
        attempt=_worker_frozen,
        most_seconds=_CLUSTER_SECONDS + _SECONDS_TO_END,
    ),
    Scenario(
        name="stall-ps",
        promise="a frozen parameter server is named; stacks of the others; 138",
        tries=10,
        attempt=_server_frozen,
        most_seconds=_CLUSTER_SECONDS + _SECONDS_TO_END,
    ),
)
