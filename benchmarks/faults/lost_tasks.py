"""Tasks of a cluster that are killed while they train, and what becomes of the run."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
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
_NUM_KILLS = 20
_FLAGS = (
    "--dropout=0.2",
    "--optimizer=adam",
    f"--checkpoint_every_steps={_CHECKPOINT_EVERY_STEPS}",
    "--summary_every_steps=5",
    "--histogram_every_steps=none",
)
_MIRRORED = ("--strategy=multi_worker_mirrored", "--model=own", *_FLAGS)
_MIRRORED_STEPS = 300
_SERVED = (
    "--strategy=parameter_server",
    "--num_workers=2",
    *_FLAGS,
)


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


def workers_killed(
    flags: Sequence[str], num_steps: int, chosen: random.Random, folder: pathlib.Path
) -> float:
    """Kills one worker after the other. Returns the longest time one was away."""
    flags = (*_SERVED, *flags, f"--train_steps={num_steps}")
    longest = 0.0
    with _started(folder, *flags) as run:
        run.wait_for_step(10)
        for _ in range(_NUM_KILLS):
            worker = chosen.randrange(2)
            time.sleep(chosen.uniform(0, 1))
            run.kill(run.task("worker", worker))
            longest = max(longest, run.seconds_until_back(worker))
        run.ends_well(num_steps, num_restarts=_NUM_KILLS)
        repeated = run.result()["attempted_steps"] - num_steps
        _require(
            0 <= repeated <= _NUM_KILLS, f"{repeated} repeated by {_NUM_KILLS} kills"
        )
        applied = run.applied_updates(num_steps)
        _require(
            applied["step"]
            == num_steps
            <= applied["optimizer"]
            <= num_steps + repeated,
            f"{num_steps} steps, {repeated} repeated, and variables count {applied}",
        )
        examples = run.result()["examples_seen"]
        _require(examples == run.examples_of(num_steps), f"{examples} examples seen")
    return longest


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
        self._killed_at = time.monotonic()
        task.kill()

    def seconds_until_ended(self, tasks: Iterator[psutil.Process]) -> float:
        """Since the last kill."""
        _, alive = psutil.wait_procs(list(tasks), timeout=60)
        _require(not alive, "the others did not end within 60 s")
        return time.monotonic() - self._killed_at

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
)
