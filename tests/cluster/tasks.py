"""Functions that start the tasks of a cluster one by one, as a scheduler does."""

import contextlib
import dataclasses
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from strategies.cluster.spec import Cluster
from strategies.launcher.launch_config import local_cluster
from strategies.processes.forked_process import Process
from strategies.processes.network_isolation import Network
from tests import processes

_SECONDS_BETWEEN_LOOKS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A process that was started as a task, and the files of its output."""

    process: Process
    output: pathlib.Path
    errors: pathlib.Path

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Waits for the process to end."""
        return self.process.wait(processes.PATIENCE_SECONDS)

    def error_lines(self) -> list[str]:
        return self.errors.read_text(encoding="utf-8").splitlines()

    def output_lines(self) -> list[str]:
        return self.output.read_text(encoding="utf-8").splitlines()


@dataclasses.dataclass(slots=True)
class Tasks:
    """Processes of one cluster, by the name of their task.

    Attributes:
      addresses: Addresses host:port by job.
      folder: Folder of the run and of the output of each task.
      flags: Flags of every task.
      networks: Network of a task by its name, where it is not that of this process.
      started: Tasks that run or have run.
    """

    addresses: Mapping[str, tuple[str, ...]]
    folder: pathlib.Path
    flags: tuple[str, ...]
    networks: Mapping[str, Network] = dataclasses.field(default_factory=dict)
    started: dict[str, Task] = dataclasses.field(default_factory=dict)

    @property
    def run_dir(self) -> pathlib.Path:
        return self.folder / "run"

    def address(self, name: str) -> str:
        return Cluster(addresses=self.addresses).tasks()[name]

    def start(
        self,
        name: str,
        *flags: str,
        begin: Sequence[str] = (),
        known_as: str | None = None,
    ) -> Task:
        """Starts the program as one task.

        Args:
          name: Name of the task.
          flags: Flags of this task alone, which follow the common flags.
          begin: Command to run instead of the program.
          known_as: Key in `started`, where two processes have the same task.
        """
        known_as = known_as or name
        job, _, index = name.rpartition("-")
        cluster = Cluster(job=job, index=int(index), addresses=self.addresses)
        output, errors = (
            self.folder / f"{known_as}.{kind}" for kind in ("output", "errors")
        )
        with output.open("wb") as out, errors.open("wb") as err:
            process = processes.start_words(
                [
                    *(begin or processes.command()),
                    *(f"--run_dir={self.run_dir}", *self.flags, *flags),
                ],
                self.folder,
                {"TF_CONFIG": cluster.tf_config()},
                stdout=out,
                stderr=err,
                network=self.networks.get(name),
            )
        self.started[known_as] = Task(process, output, errors)
        return self.started[known_as]

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until a condition holds; fails when a task ends before."""
        deadline = time.monotonic() + processes.PATIENCE_SECONDS
        while not holds():
            for name, task in self.started.items():
                if task.process.poll() is not None:
                    lines = task.error_lines()[-20:]
                    raise AssertionError(f"{name} ended before {what}: {lines}")
            if time.monotonic() > deadline:
                last = {name: lines[-5:] for name, lines in self.error_lines().items()}
                raise AssertionError(
                    f"waited {processes.PATIENCE_SECONDS} s for {what}: {last}"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def wait_for_checkpoint(self) -> None:
        """Waits until a checkpoint shows that the tasks train."""
        pattern = "checkpoints/step-*"
        self.wait_until(lambda: any(self.run_dir.glob(pattern)), "a checkpoint")

    def exit_codes(self) -> dict[str, int]:
        """Waits for every task to end."""
        return {name: task.exit_code() for name, task in self.started.items()}

    def error_lines(self) -> dict[str, list[str]]:
        return {name: task.error_lines() for name, task in self.started.items()}


@contextlib.contextmanager
def cluster(
    folder: pathlib.Path,
    num_tasks: Mapping[str, int],
    *flags: str,
    absent: tuple[str, ...] = (),
) -> Iterator[Tasks]:
    """Starts every task on a free port, and kills tasks that still run afterwards.

    Args:
      folder: Folder of the run and of the output of each task.
      num_tasks: Number of tasks by job.
      flags: Flags of every task.
      absent: Tasks of the cluster that are not started.
    """
    with running(Tasks(local_cluster(num_tasks), folder, flags), absent) as tasks:
        yield tasks


@contextlib.contextmanager
def running(tasks: Tasks, absent: tuple[str, ...] = ()) -> Iterator[Tasks]:
    """Starts every task except the absent ones, and kills all at the end."""
    try:
        for name in Cluster(addresses=tasks.addresses).tasks():
            if name not in absent:
                tasks.start(name)
        yield tasks
    finally:
        for task in tasks.started.values():
            task.process.kill()
            task.process.wait()
