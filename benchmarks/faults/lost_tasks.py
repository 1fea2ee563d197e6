"""Tasks of a cluster that are killed while they train, and what becomes of the run."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.faults.scenario import Scenario
from tests import processes

# Dropout and batch normalization: a step depends on all that a checkpoint keeps.
_MODEL = """
import keras

from models.base import classifier


def build(data, settings):
    layers = [
        keras.layers.Flatten(),
        keras.layers.Dense(32),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.Activation("relu"),
        keras.layers.Dropout(settings.dropout),
        keras.layers.Dense(data.num_classes),
    ]
    return keras.Sequential([keras.Input(data.input_shape), *layers])


SPEC = classifier(build)
"""
_CHECKPOINT_EVERY_STEPS = 40
_MOST_LINES = 20
_FLAGS = (
    "--dropout=0.2",
    "--optimizer=adam",
    f"--checkpoint_every_steps={_CHECKPOINT_EVERY_STEPS}",
    "--summary_every_steps=5",
    "--histogram_every_steps=none",
)
_MIRRORED = ("--strategy=multi_worker_mirrored", "--model=own", *_FLAGS)
_MIRRORED_STEPS = 300
_SERVED = ("--strategy=parameter_server", "--model=mlp", *_FLAGS)


def multi_worker_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns how long the survivors lived on."""
    num_workers = chosen.choice((2, 3))
    victim = chosen.randrange(num_workers)
    step = chosen.randrange(1, _MIRRORED_STEPS - 20)
    flags = (*_MIRRORED, f"--num_workers={num_workers}")
    with _started(folder, *flags, f"--train_steps={_MIRRORED_STEPS}") as run:
        run.wait_for_step(step)
        tasks = run.tasks()
        lost = run.task("worker", victim)
        run.kill(lost)
        seconds = run.seconds_until_ended(task for task in tasks if task != lost)
        run.ends_well(_MIRRORED_STEPS, num_restarts=1)
        _require(
            f"worker-{victim} was lost (SIGKILL): restart 1 of 3, of all tasks, from "
            in run.errors(),
            f"the launcher says {run.errors()!r}",
        )
    _require(
        run.result()["weights_sha256"] == _undisturbed_weights(num_workers),
        f"other weights after worker-{victim} of {num_workers} was killed at {step}",
    )
    return seconds


def workers_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Kills one worker after the other. Returns the longest time one was away."""
    num_kills, num_steps = 20, 2_000
    # So that the steps last for as long as all these workers take to start.
    slowly = "--step_delay_milliseconds=100"
    with _started(folder, *_SERVED, slowly, f"--train_steps={num_steps}") as run:
        longest = _kill_workers(run, num_kills, chosen)
        run.ends_well(num_steps, num_restarts=num_kills)
        _require_counts(run, num_steps, num_kills)
    return longest


def busy_workers_killed(
    chosen: random.Random, folder: pathlib.Path, num_kills: int = 5
) -> float:
    """The same in the middle of their steps, until the run is told to stop."""
    with _started(folder, *_SERVED, "--train_steps=1000000") as run:
        longest = _kill_workers(run, num_kills, chosen)
        run.stop()
        _require_counts(run, run.result()["steps"], num_kills)
    return longest


def _kill_workers(run: _Run, num_kills: int, chosen: random.Random) -> float:
    run.wait_for_step(10)
    longest = 0.0
    for _ in range(num_kills):
        worker = chosen.randrange(2)
        time.sleep(chosen.uniform(0, 1))
        run.kill(run.task("worker", worker))
        longest = max(longest, run.seconds_until_back(worker))
    return longest


def _require_counts(run: _Run, num_steps: int, num_kills: int) -> None:
    """That nothing was lost, and what was repeated is known to be."""
    result, counted = run.result(), run.counters()
    repeated = result["attempted_steps"] - num_steps
    _require(result["restarts"] == num_kills, f"{result['restarts']} restarts")
    _require(0 <= repeated <= num_kills, f"{repeated} repeated by {num_kills} kills")
    _require(
        counted["step"] == num_steps
        and num_steps <= counted["optimizer"] <= num_steps + repeated,
        f"{num_steps} steps, {repeated} repeated, and variables count {counted}",
    )
    examples = result["examples_seen"]
    _require(
        examples == _examples_of(num_steps), f"{examples} examples in {num_steps} steps"
    )


def server_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns how long it took until the loss of the only server was noticed."""
    return _all_start_again("ps", chosen, folder)


def chief_killed(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns how long the other tasks lived on."""
    return _all_start_again("chief", chosen, folder)


def _all_start_again(job: str, chosen: random.Random, folder: pathlib.Path) -> float:
    num_steps = 200
    step = chosen.randrange(_CHECKPOINT_EVERY_STEPS, num_steps - 40)
    with _started(folder, *_SERVED, f"--train_steps={num_steps}") as run:
        run.wait_for_step(step)
        tasks, lines = run.tasks(), run.num_lines_logged()
        lost = run.task(job, 0)
        run.kill(lost)
        reached = processes.last_step_of(run.folder)
        seconds = run.seconds_until_ended(task for task in tasks if task != lost)
        lines = run.num_lines_logged() - lines
        _require(lines <= _MOST_LINES, f"{lines} lines of log about {job}-0")
        run.ends_well(num_steps, num_restarts=1)
        (again,) = re.findall(
            rf"{job}-0 was lost \(SIGKILL\): restart 1 of 3, of all tasks, "
            r"from step (\d+)",
            run.errors(),
        )
        repeated = reached - int(again)
        _require(
            repeated <= _CHECKPOINT_EVERY_STEPS,
            f"{job}-0 was killed at {reached}, and all began again at {again}",
        )
    return seconds


def worker_frozen(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns how long there were no steps, of parameter servers."""
    with _started(folder, *_SERVED, "--train_steps=1000000") as run:
        run.wait_for_step(chosen.randrange(10, 100))
        run.freeze(run.task("worker", chosen.randrange(2)))
        # What was under way when it stopped may still be written.
        time.sleep(1)
        run.wait_for_step(processes.last_step_of(run.folder) + 10)
        seconds = time.monotonic() - run.struck_at
        run.stop()
    return seconds


def mirrored_worker_frozen(
    patience_seconds: float, chosen: random.Random, folder: pathlib.Path
) -> float:
    """Returns how long the other tasks lived on."""
    num_workers = chosen.choice((2, 3))
    victim = chosen.randrange(num_workers)
    flags = (
        *_MIRRORED,
        f"--num_workers={num_workers}",
        f"--train_steps={_MIRRORED_STEPS}",
        f"--peer_timeout_seconds={patience_seconds:g}",
    )
    with _started(folder, *flags) as run:
        run.wait_for_step(chosen.randrange(1, _MIRRORED_STEPS - 20))
        tasks = run.tasks()
        run.freeze(run.task("worker", victim))
        seconds = run.seconds_until_ended(iter(tasks))
        run.ends_well(_MIRRORED_STEPS, num_restarts=1)
    _require(
        run.result()["weights_sha256"] == _undisturbed_weights(num_workers),
        f"other weights after worker-{victim} of {num_workers} was frozen",
    )
    return seconds


class _Run:
    """A launcher, what it has started, and the folder of its run."""

    def __init__(self, process: subprocess.Popen[str], folder: pathlib.Path):
        self.process = process
        self.folder = folder / "run"
        self._errors = folder / "errors"

    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def result(self) -> dict[str, Any]:
        return processes.result_of(self.folder)

    def tasks(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def task(self, job: str, index: int) -> psutil.Process:
        return processes.task_of(self.process.pid, job, index)

    def wait_for_step(self, step: int) -> None:
        processes.wait_until(
            lambda: processes.last_step_of(self.folder) >= step,
            f"step {step}",
            self.process,
        )

    def kill(self, task: psutil.Process) -> None:
        self.struck_at = time.monotonic()
        task.kill()

    def freeze(self, task: psutil.Process) -> None:
        self.struck_at = time.monotonic()
        task.suspend()

    def stop(self) -> None:
        """Ends the run as a user does."""
        self.process.terminate()
        code = self.process.wait(processes.PATIENCE_SECONDS)
        _require(code == 143, f"exit code {code}: {self.errors()[-1000:]!r}")

    def num_lines_logged(self) -> int:
        """In all logs, and on the terminal."""
        files = [self._errors, *(self.folder / "logs").glob("*.log")]
        return sum(len(file.read_text("utf-8").splitlines()) for file in files)

    def seconds_until_ended(self, tasks: Iterator[psutil.Process]) -> float:
        """Since the last blow."""
        _, alive = psutil.wait_procs(list(tasks), timeout=60)
        _require(not alive, "the others did not end within 60 s")
        return time.monotonic() - self.struck_at

    def seconds_until_back(self, worker: int) -> float:
        """Since the last blow, until an update that began after it is this worker's."""
        lines = len(processes.metrics_of(self.folder))

        def takes_part() -> bool:
            # The line after the kill may still tell of the one that was killed.
            found = processes.metrics_of(self.folder)[lines + 1 :]
            named = [
                row["staleness"]["by_worker"] for row in found if "staleness" in row
            ]
            return any(f"worker-{worker}" in workers for workers in named)

        processes.wait_until(takes_part, f"worker-{worker} is back", self.process)
        return time.monotonic() - self.struck_at

    def counters(self) -> dict[str, int]:
        """What the newest checkpoint's variables say of applied updates."""
        newest = max((self.folder / "checkpoints").glob("step-*"))
        # TensorFlow, which takes seconds and is not needed before.
        import tensorflow as tf

        saved = tf.train.load_checkpoint(str(newest / "variables"))
        names = saved.get_variable_to_shape_map()
        (step,) = (n for n in names if n.startswith("step/") and "VALUE" in n)
        (optimizer,) = (n for n in names if "iterations" in n and "VALUE" in n)
        return {
            "step": int(saved.get_tensor(step)),
            "optimizer": int(saved.get_tensor(optimizer)),
        }

    def ends_well(self, num_steps: int, num_restarts: int) -> None:
        """Waits for the end, and checks what is common to all good ends."""
        code = self.process.wait(processes.PATIENCE_SECONDS)
        _require(code == 0, f"exit code {code}: {self.errors()[-1000:]!r}")
        result = self.result()
        for name, expected in {
            "status": "completed",
            "steps": num_steps,
            "restarts": num_restarts,
        }.items():
            _require(
                result[name] == expected,
                f"{name} is {result[name]}, not {expected}: {self.errors()[-1000:]!r}",
            )


@contextlib.contextmanager
def _started(folder: pathlib.Path, *flags: str) -> Iterator[_Run]:
    """A run of the project with one more model in it."""
    project = folder / "project"
    project.mkdir()
    for package in ("strategies", "trainers"):
        (project / package).symlink_to(processes.ROOT / package)
    shutil.copytree(processes.ROOT / "models", project / "models")
    (project / "models/own.py").write_text(_MODEL, encoding="utf-8")
    # A file, because nobody reads from a pipe meanwhile.
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            processes.command(f"--run_dir={folder / 'run'}", *flags),
            cwd=project,
            env={**processes.environment(), "PYTHONPATH": str(project)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )
    try:
        yield _Run(process, folder)
    finally:
        process.kill()
        process.wait()


@functools.cache
def _undisturbed_weights(num_workers: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        flags = (*_MIRRORED, f"--num_workers={num_workers}")
        steps = f"--train_steps={_MIRRORED_STEPS}"
        with _started(pathlib.Path(folder), *flags, steps) as run:
            run.ends_well(_MIRRORED_STEPS, num_restarts=0)
            return run.result()["weights_sha256"]


def _examples_of(num_steps: int) -> int:
    """Of the digits, in global batches of 64; the last of an epoch is smaller."""
    epochs, steps = divmod(num_steps, 23)
    return 1438 * epochs + 64 * steps


def _require(holds: bool, otherwise: str) -> None:
    """Raises AssertionError with a line that says what was promised."""
    if not holds:
        raise AssertionError(otherwise)


SCENARIOS = (
    Scenario(
        name="multi-worker-killed",
        promise="the others end within 2 s; all start again; the same weights",
        tries=20,
        attempt=multi_worker_killed,
        most_seconds=2.0,
    ),
    Scenario(
        name="parameter-server-worker-killed",
        promise="20 times: takes part again within 10 s; no update is lost, and at "
        "most one a kill repeated and counted as such",
        tries=3,
        attempt=workers_killed,
        most_seconds=10.0,
    ),
    Scenario(
        name="parameter-server-busy-worker-killed",
        promise="the same 5 times, where several steps are under way",
        tries=5,
        attempt=busy_workers_killed,
        most_seconds=10.0,
    ),
    Scenario(
        name="ps-killed",
        promise="noticed within 5 s and 20 lines; at most an interval is repeated",
        tries=10,
        attempt=server_killed,
        most_seconds=5.0,
    ),
    Scenario(
        name="chief-killed",
        promise="noticed within 5 s and 20 lines; at most an interval is repeated",
        tries=10,
        attempt=chief_killed,
        most_seconds=5.0,
    ),
    Scenario(
        name="worker-frozen",
        promise="parameter servers make progress within 15 s",
        tries=5,
        attempt=worker_frozen,
        most_seconds=15.0,
    ),
    Scenario(
        name="multi-worker-frozen",
        promise="all tasks end within 12 s and start again; the same weights",
        tries=5,
        attempt=functools.partial(mirrored_worker_frozen, 10.0),
        most_seconds=12.0,
    ),
    Scenario(
        name="multi-worker-frozen-impatient",
        promise="with --peer_timeout_seconds=4 within 5 s",
        tries=5,
        attempt=functools.partial(mirrored_worker_frozen, 4.0),
        most_seconds=5.0,
    ),
)
