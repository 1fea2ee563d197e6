"""The two sides of a comparison: the project's command, and scripts of peers."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.record import ROOT
from strategies.cluster.spec import Cluster
from strategies.launcher.launch_config import local_cluster

_PATIENCE_SECONDS = 900.0
_POLL_SECONDS = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measurements of one run of a side.

    Attributes:
      examples_per_second: Speed of training after the first calls.
      first_step_seconds: Time from the start of the process to the end of its first
        call.
      wall_seconds: Duration of the whole command.
      peak_memory_mib: Peak memory of the largest process.
      training_seconds: Duration of all steps but the first calls, with the writing
        between them; None for peers.
      versions: Versions by package.
    """

    examples_per_second: float
    first_step_seconds: float | None
    wall_seconds: float
    peak_memory_mib: float
    training_seconds: float | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Side(Protocol):
    """One of the two programs of a comparison."""

    @property
    def label(self) -> str:
        """Command, or a line that describes the side."""

    def measure(self, folder: pathlib.Path) -> Measured:
        """Runs it once, in an empty folder.

        Raises:
          RuntimeError: It failed; the message has its last lines.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """`python -m trainers.main` with flags.

    Attributes:
      flags: Arguments without --run_dir.
      cores: CPU of each of several separate runs at once; empty for one run on all.
    """

    flags: tuple[str, ...]
    cores: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        command = f"python -m trainers.main {' '.join(self.flags)}"
        if not self.cores:
            return command
        return f"{len(self.cores)} at once: taskset -c {self.cores[0]} {command}"

    def measure(self, folder: pathlib.Path) -> Measured:
        """Returns the speed of all runs together."""
        pins = [["taskset", "-c", str(core)] for core in self.cores] or [[]]
        runs = [folder / f"run-{index}" for index in range(len(pins))]
        train = [sys.executable, "-m", "trainers.main", *self.flags]
        commands: list[tuple[Sequence[str], Mapping[str, str]]] = [
            ([*pin, *train, f"--run_dir={run}"], {})
            for pin, run in zip(pins, runs, strict=True)
        ]
        seconds = _run(commands, folder)
        found = [_of_run(run, seconds) for run in runs]
        return dataclasses.replace(
            found[0],
            examples_per_second=sum(one.examples_per_second for one in found),
            peak_memory_mib=max(one.peak_memory_mib for one in found),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A script of `benchmarks.peers`.

    Attributes:
      script: Name of the script.
      flags: Its arguments.
      num_workers: Number of processes with TF_CONFIG; 0 for one without.
      torch_processes: Number of processes with torchrun's variables; 0 for none.
    """

    script: str
    flags: tuple[str, ...]
    num_workers: int = 0
    torch_processes: int = 0

    @property
    def label(self) -> str:
        return f"python -m benchmarks.peers.{self.script} {' '.join(self.flags)}"

    def measure(self, folder: pathlib.Path) -> Measured:
        """Runs it once; the first process reports."""
        command = [sys.executable, "-m", f"benchmarks.peers.{self.script}", *self.flags]
        seconds = _run([(command, env) for env in self._environments()], folder)
        lines = (folder / "0.log").read_text(encoding="utf-8").strip().splitlines()
        return Measured(wall_seconds=seconds, **json.loads(lines[-1]))

    def _environments(self) -> Sequence[Mapping[str, str]]:
        if self.torch_processes:
            (address,) = local_cluster({"worker": 1})["worker"]
            return [
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(self.torch_processes),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": address.rpartition(":")[2],
                }
                for rank in range(self.torch_processes)
            ]
        if self.num_workers:
            addresses = local_cluster({"worker": self.num_workers})
            tasks = [
                Cluster(job="worker", index=index, addresses=addresses)
                for index in range(self.num_workers)
            ]
            return [{"TF_CONFIG": task.tf_config()} for task in tasks]
        return [{}]


def _of_run(run: pathlib.Path, wall_seconds: float) -> Measured:
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    seconds = result["seconds"]
    return Measured(
        examples_per_second=result["throughput"]["examples_per_second"],
        first_step_seconds=seconds["startup"] + seconds["trace"],
        wall_seconds=wall_seconds,
        peak_memory_mib=max(result["peak_memory_mib"].values()),
        training_seconds=seconds["train"] + seconds["summary"],
        versions=result["versions"],
    )


def _run(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], folder: pathlib.Path
) -> float:
    """Runs processes at once, which print into N.log of a folder.

    Returns:
      Seconds until all have ended.

    Raises:
      RuntimeError: One failed, or did not end in time.
    """
    ours = {name: v for name, v in os.environ.items() if not name.startswith("TF_")}
    began = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for index, (command, environment) in enumerate(commands):
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**ours, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context((folder / f"{index}.log").open("wb")),
                stderr=stack.enter_context((folder / f"{index}.errors").open("wb")),
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        while None in (codes := [process.poll() for process in processes]):
            # Others may wait for one that failed.
            if any(codes) or time.monotonic() > began + _PATIENCE_SECONDS:
                break
            time.sleep(_POLL_SECONDS)
        seconds = time.monotonic() - began
    for index, code in sorted(enumerate(codes), key=lambda each: not each[1]):
        if code != 0:
            errors = (folder / f"{index}.errors").read_text(errors="replace")
            how = "did not end" if code is None else f"ended with {code}"
            raise RuntimeError(f"{processes[index].args!r} {how}: {errors[-2000:]}")
    return seconds
