"""Clusters that train while faults happen, observed from outside."""

import contextlib
import functools
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil

from strategies.processes.forked_process import Process
from tests import processes

CHECKPOINT_EVERY_STEPS = 40
_FLAGS = (
    "--optimizer=adam",
    f"--checkpoint_every_steps={CHECKPOINT_EVERY_STEPS}",
    "--summary_every_steps=5",
    "--set=report.histogram_every_steps=none",
)
MIRRORED = (
    "--strategy=multi_worker_mirrored",
    "--model=tests.fault_injection.normalized_model:model",
    # The delay makes a fault hit the intended step, and not the time after the last.
    "--set=length.step_delay_milliseconds=10",
    "--eval_every_steps=60",
    *_FLAGS,
)
MIRRORED_STEPS = 120
# A step takes 0.25 s, most of which is to send 76 kB of gradients and then of weights.
SHARDED = (
    *("--strategy=multi_worker_mirrored", "--shard_optimizer_state"),
    *("--model=mlp", "--hidden_units=512", "--emulated_bandwidth_mbit=5"),
    *("--optimizer=adam", *processes.NO_EVALUATION, "--checkpoint_every_steps=5"),
    *("--summary_every_steps=1", "--set=report.histogram_every_steps=none"),
)
SHARDED_STEPS = 20
SERVED = ("--strategy=parameter_server", "--model=mlp", "--dropout=0.2", *_FLAGS)


class Run:
    """A launcher with its tasks, and the folder of its run."""

    def __init__(self, process: Process, folder: pathlib.Path):
        self.process = process
        self.folder = folder / "run"
        self._errors = folder / "errors"

    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def result(self) -> dict[str, Any]:
        return processes.result_of(self.folder)

    def tasks(self) -> list[psutil.Process]:
        return processes.tasks_of(self.process.pid)

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
        """Ends the run by SIGTERM, as a user does, and checks the exit code."""
        self.process.terminate()
        code = self.process.wait(processes.PATIENCE_SECONDS)
        require(code == 143, f"exit code {code}: {self.errors()[-1000:]!r}")

    def num_lines_logged(self) -> int:
        """Returns the number of lines in all logs and on the terminal."""
        files = [self._errors, *(self.folder / "logs").glob("*.log")]
        return sum(len(file.read_text("utf-8").splitlines()) for file in files)

    def seconds_until_ended(self, tasks: Iterator[psutil.Process]) -> float:
        """Returns the seconds from the last fault to the end of the tasks."""
        _, alive = psutil.wait_procs(list(tasks), timeout=60)
        require(not alive, "the others did not end within 60 s")
        return time.monotonic() - self.struck_at

    def seconds_others_outlive(self, job: str, index: int) -> float:
        """Kills a task, and returns the seconds that the others live on."""
        tasks, lost = self.tasks(), self.task(job, index)
        self.kill(lost)
        return self.seconds_until_ended(task for task in tasks if task != lost)

    def num_lost(self) -> int:
        """Returns the number of tasks that the launcher has found lost so far."""
        return self.errors().count(" was lost")

    def wait_until_lost(self, number: int) -> None:
        processes.wait_until(
            lambda: self.num_lost() >= number, f"{number} lost tasks", self.process
        )

    def seconds_until_back(self, worker: int) -> float:
        """Returns the seconds from the last fault until a worker takes part again.

        It takes part when an update that began after the fault is this worker's.
        """
        lines = len(processes.metrics_so_far(self.folder))

        def takes_part() -> bool:
            # The first line after the kill may still count the killed process.
            found = processes.metrics_so_far(self.folder)[lines + 1 :]
            named = [
                row["staleness"]["by_worker"] for row in found if "staleness" in row
            ]
            return any(f"worker-{worker}" in workers for workers in named)

        processes.wait_until(takes_part, f"worker-{worker} is back", self.process)
        return time.monotonic() - self.struck_at

    def counters(self) -> dict[str, int]:
        """Returns the counts of applied updates in the newest checkpoint."""
        newest = max((self.folder / "checkpoints").glob("step-*"))
        # TensorFlow takes seconds to import and is not needed before.
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
        """Waits for the end, and checks the exit code, status, steps and restarts."""
        code = self.process.wait(processes.PATIENCE_SECONDS)
        require(code == 0, f"exit code {code}: {self.errors()[-1000:]!r}")
        result = self.result()
        for name, expected in {
            "status": "completed",
            "steps": num_steps,
            "restarts": num_restarts,
        }.items():
            require(
                result[name] == expected,
                f"{name} is {result[name]}, not {expected}: {self.errors()[-1000:]!r}",
            )


@contextlib.contextmanager
def started(folder: pathlib.Path, *flags: str) -> Iterator[Run]:
    """Yields a run of one command in an empty folder."""
    # Errors go to a file, because no process reads from a pipe meanwhile.
    with (folder / "errors").open("wb") as errors:
        process = processes.start_words(
            processes.command(f"--run_dir={folder / 'run'}", *flags),
            folder,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield Run(process, folder)
    finally:
        process.kill()
        process.wait()


@functools.cache
def undisturbed_weights(
    num_workers: int, flags: tuple[str, ...] = MIRRORED, num_steps: int = MIRRORED_STEPS
) -> str:
    """Returns the digest of the weights of a run without a fault."""
    with tempfile.TemporaryDirectory() as folder:
        flags = (*flags, f"--num_workers={num_workers}", f"--train_steps={num_steps}")
        with started(pathlib.Path(folder), *flags) as run:
            run.ends_well(num_steps, num_restarts=0)
            return run.result()["weights_sha256"]


def require(holds: bool, otherwise: str) -> None:
    """Raises AssertionError with a line, unless the promise holds."""
    if not holds:
        raise AssertionError(otherwise)
