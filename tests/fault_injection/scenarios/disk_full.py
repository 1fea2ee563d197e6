"""Scenarios of a disk that is full for some time, or until the end of a run."""

import contextlib
import pathlib
import random
import shutil
import subprocess
import time
from collections.abc import Iterator

from strategies.processes.forked_process import Process
from tests import processes
from tests.fault_injection.continuation import (
    SMALL,
    assert_continues,
    newest_intact,
    undisturbed_weights,
)
from tests.fault_injection.scenario import Scenario

FLAGS = (
    *SMALL,
    "--train_steps=750",
    "--set=length.step_delay_milliseconds=2",
    "--summary_every_steps=50",
    *("--checkpoint_every_steps=50", "--eval_every_steps=250"),
)


class SmallDisk:
    """A separate file system of a few MiB that only some processes see.

    Attributes:
      folder: Path of the file system, for the processes that see it.
      begin: Words that precede a command to let it see the file system.
      seen: Path of the file system for all other processes.
    """

    def __init__(self, folder: pathlib.Path, keeper: subprocess.Popen[str]):
        self.folder = folder
        self.begin = ["nsenter", f"--target={keeper.pid}", "--user", "--mount"]
        self.begin += ["--preserve-credentials", f"--wd={processes.ROOT}"]
        # The path leads through a process that sees the file system.
        self.seen = pathlib.Path(f"/proc/{keeper.pid}/root{folder}")

    def fill(self) -> None:
        with (
            contextlib.suppress(OSError),
            (self.seen / "filler").open("ab", buffering=0) as filler,
        ):
            while filler.write(bytes(4096)):
                pass

    def free(self) -> None:
        (self.seen / "filler").unlink()


def small_disks_exist() -> bool:
    """Returns whether this machine lets its users make a file system."""
    make = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return (
        shutil.which("unshare") is not None
        and shutil.which("nsenter") is not None
        and subprocess.run(make, capture_output=True, check=False).returncode == 0
    )


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mounts a file system at a folder, in a namespace that ends with the block."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o size={mebibytes}m none {folder} && echo there && cat"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "there\n", "the file system is not mounted"
        yield SmallDisk(folder, keeper)
        keeper.communicate()


def _while_training(chosen: random.Random, folder: pathlib.Path) -> None:
    """Fills the disk for a time, in which checkpoints and lines may be lost."""
    expected = undisturbed_weights(*FLAGS)
    with small_disk(folder / "disk", 4) as disk:
        run = disk.seen / "run"
        with _training(disk, folder) as process:
            saved = _fill_soon(disk, chosen)
            time.sleep(chosen.uniform(0.5, 1.5))
            assert newest_intact(run) == saved, "another checkpoint on a full disk"
            disk.free()
            ended = processes.end_of(process)
        assert ended.returncode == 0, f"ends with {ended.returncode}: {ended.stderr}"
        _assert_one_warning_of_a_kind(ended.stderr)
        assert processes.result_of(run)["weights_sha256"] == expected, "other weights"
        assert newest_intact(run) == 750, "no checkpoint after the disk was freed"
        steps = [row["step"] for row in processes.metrics_of(run)]
        assert steps == sorted(steps), "torn lines"
        assert steps[-1] == 750, "no metrics after the disk was freed"


def _at_the_end(chosen: random.Random, folder: pathlib.Path) -> None:
    """Fills the disk until the end; the run fails, and names its last checkpoint."""
    with small_disk(folder / "disk", 4) as disk:
        run = disk.seen / "run"
        with _training(disk, folder) as process:
            saved = _fill_soon(disk, chosen)
            if chosen.random() < 0.5:
                process.terminate()
            ended = processes.end_of(process)
        assert ended.returncode == 2, f"ends with {ended.returncode}: {ended.stderr}"
        errors = _assert_one_warning_of_a_kind(ended.stderr)
        assert len(errors) == 1, f"not one line: {errors}"
        assert f"that of step {saved}: free space" in errors[0], errors[0]
        assert newest_intact(run) == saved, "the last good checkpoint is gone"
        disk.free()
        shutil.copytree(run, folder / "run")
    assert_continues(folder / "run", *FLAGS)


def _fill_soon(disk: SmallDisk, chosen: random.Random) -> int | None:
    """Fills the disk soon; returns the step of the newest checkpoint."""
    time.sleep(chosen.uniform(0.0, 0.5))
    disk.fill()
    return newest_intact(disk.seen / "run")


@contextlib.contextmanager
def _training(disk: SmallDisk, folder: pathlib.Path) -> Iterator[Process]:
    """Yields a run on the disk, once it has a checkpoint."""
    begin = [*disk.begin, *processes.command(f"--run_dir={disk.folder}/run")]
    with processes.started(*FLAGS, folder=folder, begin=begin) as process:
        processes.wait_until(
            lambda: len(processes.checkpoints_of(disk.seen / "run")) > 0,
            "a checkpoint",
            process,
        )
        yield process


def _assert_one_warning_of_a_kind(stderr: str) -> list[str]:
    """Checks the warnings, and returns the other lines."""
    lines = stderr.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    for kind in ("summaries", "lines of", "the checkpoint of"):
        of_kind = [line for line in warnings if line.startswith(f"warning: {kind}")]
        assert len(of_kind) <= 1, f"repeated warnings: {of_kind}"
    assert len(warnings) >= 1, "no warning"
    assert all("No space left on device" in line for line in warnings), warnings
    return [line for line in lines if line not in warnings]


SCENARIOS = (
    Scenario(
        name="disk-full-for-a-while",
        promise="one warning of a kind, training and its weights as ever, and "
        "checkpoints again when there is space",
        tries=10,
        attempt=_while_training,
    ),
    Scenario(
        name="disk-full-at-the-end",
        promise="exit code 2 and one line, the last good checkpoint intact, from which "
        "the run goes on",
        tries=10,
        attempt=_at_the_end,
    ),
)
