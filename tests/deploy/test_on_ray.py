"""Tests of examples/on_ray.py, on a Ray cluster of this machine."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from strategies.common.errors import ExitCode
from tests import processes
from tests.cluster.separate_hosts import reason_for_none, separate_hosts
from tests.processes import ROOT, checkpoints_of, result_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TRAINING = ("--model=mlp", "--hidden_units=8")


@contextlib.contextmanager
def on_ray(
    folder: pathlib.Path, *flags: str, actors: tuple[str, ...] = ("--num_workers=2",)
) -> Iterator[subprocess.Popen[str]]:
    """Runs the example, if possible on a host whose ports no other host reaches."""
    environment = {
        **processes.environment(),
        # Ray keeps its password in this folder. By default it sends usage statistics.
        "HOME": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray then assumes four cores, with any number in the machine.
        "RAY_OVERRIDE_RESOURCES": '{"CPU": 4}',
    }
    arguments = [*actors, "--", f"--run_dir={folder / 'run'}", *TRAINING, *flags]
    with contextlib.ExitStack() as held:
        before: list[str] = []
        if not reason_for_none():
            before = held.enter_context(separate_hosts(1)).before(0)
        process = held.enter_context(
            subprocess.Popen(
                [*before, sys.executable, "-m", "examples.on_ray", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        try:
            yield process
        finally:
            descendants = _descendants(process.pid)
            process.kill()
            # Ray's own processes end after the process that started them.
            _, left = psutil.wait_procs(descendants, timeout=processes.PATIENCE_SECONDS)
            assert left == []


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.mark.exhaustive
def test_two_actors_train_with_keras_3(tmp_path: pathlib.Path) -> None:
    flags = ("--strategy=multi_worker_mirrored", "--train_steps=20")
    with on_ray(tmp_path, *flags) as process:
        done = processes.end_of(process)
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 20)
    assert result["strategy"] == "multi_worker_mirrored"
    assert result["num_replicas"] == len(result["cluster"]["worker"]) == 2
    # Ray Train's own trainer would have used version 2.
    assert result["versions"]["keras"].startswith("3.")


@pytest.mark.exhaustive
def test_a_chief_and_servers_are_actors_too(tmp_path: pathlib.Path) -> None:
    """SIGTERM to the example then ends all of them after a checkpoint."""
    flags = (
        *("--strategy=parameter_server", "--train_steps=1000000"),
        *("--checkpoint_every_steps=20", "--set=length.step_delay_milliseconds=10"),
    )
    actors = ("--num_workers=2", "--num_ps=1")
    with on_ray(tmp_path, *flags, actors=actors) as process:
        processes.wait_until(
            lambda: bool(checkpoints_of(tmp_path / "run")), "a checkpoint", process
        )
        process.send_signal(signal.SIGTERM)
        done = processes.end_of(process)
    assert done.returncode == ExitCode.TERMINATED, done
    assert (tmp_path / "run" / "result.json").exists(), done
    result = result_of(tmp_path / "run")
    assert result["status"] == "preempted"
    assert {job: len(tasks) for job, tasks in result["cluster"].items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }


@pytest.mark.exhaustive
def test_exit_codes_are_those_of_the_program(tmp_path: pathlib.Path) -> None:
    flags = ("--strategy=multi_worker_mirrored", "--learning_rate=-1")
    with on_ray(tmp_path, *flags) as process:
        done = processes.end_of(process)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "--learning_rate=-1" in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_nothing_is_left_when_the_example_is_killed(tmp_path: pathlib.Path) -> None:
    flags = ("--strategy=multi_worker_mirrored", "--train_steps=1000000")
    with on_ray(tmp_path, *flags, "--checkpoint_every_steps=20") as process:
        processes.wait_until(
            lambda: bool(checkpoints_of(tmp_path / "run")), "a checkpoint", process
        )
        programs = [
            each
            for each in _descendants(process.pid)
            if "trainers.main" in " ".join(each.cmdline())
        ]
        assert len(programs) == 2
        os.kill(process.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(programs, timeout=processes.PATIENCE_SECONDS)
        assert left == []
