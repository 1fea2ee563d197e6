"""Tests of the scripts of deploy/slurm, with an imitation of Slurm's commands."""

import dataclasses
import functools
import itertools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from strategies.common.errors import ExitCode
from tests import processes
from tests.deploy import stand_in_slurm
from tests.markers import further
from tests.processes import ROOT, checkpoints_of, result_of
from trainers.cli.flags import parse

FOLDER = ROOT / "deploy" / "slurm"
SCRIPTS = {
    "multi_worker": ("worker-0", "worker-1"),
    "parameter_server": ("chief-0", "ps-0", "worker-0", "worker-1"),
}
# Ids of jobs, which determine ports. They begin at the process id, so that other runs
# of this file have other ports.
JOBS = itertools.count(os.getpid())
TRAINING = ("--model=mlp", "--hidden_units=8", *processes.NO_EVALUATION)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job as sbatch makes it from a script.

    Attributes:
      script: Name of the script.
      folder: Folder from which it is submitted, which has the requests to Slurm.
    """

    script: str
    folder: pathlib.Path

    @property
    def run_dir(self) -> pathlib.Path:
        return self.folder / "run"

    def directives(self) -> dict[str, str]:
        """Returns the options of sbatch in the script, by their name."""
        text = (FOLDER / f"{self.script}.sbatch").read_text(encoding="utf-8")
        found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.MULTILINE)
        assert len(found) == text.count("#SBATCH")
        return dict(found)

    def start(
        self, *flags: str, restarts: int = 0, first: Sequence[pathlib.Path] = ()
    ) -> subprocess.Popen[str]:
        """Runs the script.

        Args:
          flags: Arguments of the script.
          restarts: Number of times that the job has been queued again.
          first: Folders of programs that precede all others in PATH.
        """
        commands = self.folder / "bin"
        commands.mkdir(exist_ok=True)
        for name in ("srun", "scontrol"):
            program = [sys.executable, stand_in_slurm.__file__, name]
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n', "utf-8")
            path.chmod(0o755)
        python = pathlib.Path(sys.executable).parent
        folders = (commands, *first, python, os.environ["PATH"])
        return subprocess.Popen(
            ["bash", str(FOLDER / f"{self.script}.sbatch"), *flags],
            cwd=self.folder,
            env={
                **processes.environment(),
                **self._variables(restarts),
                "PATH": os.pathsep.join(map(str, folders)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _variables(self, restarts: int) -> Mapping[str, str]:
        asked = self.directives()
        tasks = int(asked["nodes"]) * int(asked["ntasks-per-node"])
        return {
            stand_in_slurm.NOTES: str(self.folder),
            "RUN_DIR": str(self.run_dir),
            "SLURM_JOB_ID": str(next(JOBS)),
            "SLURM_NTASKS": str(tasks),
            "SLURM_CPUS_PER_TASK": asked["cpus-per-task"],
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
        }

    def tasks(self) -> list[int]:
        """Returns the process ids of the tasks, by their rank."""
        return [int(number) for number in self._note("tasks").split()]

    def is_requeued(self) -> bool:
        """Returns whether the job was to be queued again, and forgets the request.

        There is at most one request.
        """
        asked = self._note("requeued").split()
        (self.folder / "requeued").unlink(missing_ok=True)
        assert len(asked) < 2
        return bool(asked)

    def _note(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


def assert_complete(job: Job, steps: int) -> None:
    result = result_of(job.run_dir)
    assert (result["status"], result["steps"]) == ("completed", steps)
    tasks = [
        f"{j}-{i}" for j, found in result["cluster"].items() for i in range(len(found))
    ]
    assert sorted(tasks) == sorted(SCRIPTS[job.script])


# Each task imports TensorFlow. tests/cluster/test_slurm.py identifies tasks by Slurm's
# variables, and the test below reads the commands of the scripts.
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_trains_to_its_end(script: str, tmp_path: pathlib.Path) -> None:
    job = Job(script, tmp_path)
    with job.start(*TRAINING, "--train_steps=20") as process:
        done = processes.end_of(process)
    assert done.returncode == 0, done.stderr
    assert not job.is_requeued()
    assert_complete(job, steps=20)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_tasks_of_a_job_are_given_flags_of_the_program(
    script: str, tmp_path: pathlib.Path
) -> None:
    job = Job(script, tmp_path)
    first = fake_python(tmp_path / "first", 'printf "%s\\n" "$@" > given.$SLURM_PROCID')
    with job.start(*TRAINING, "--train_steps=20", first=[first]) as process:
        done = processes.end_of(process)
    assert done.returncode == 0, done.stderr
    given = [path.read_text("utf-8").splitlines() for path in tmp_path.glob("given.*")]
    assert given == [given[0]] * len(SCRIPTS[script])
    assert given[0][:2] == ["-m", "trainers.main"]
    config = parse(given[0][1:])
    assert config.run.run_dir == str(job.run_dir)
    assert config.length.train_steps == 20
    jobs = {task.partition("-")[0] for task in SCRIPTS[script]}
    assert jobs <= set(config.strategy.traits.roles)


SLOW = ("--checkpoint_every_steps=20", "--set=length.step_delay_milliseconds=50")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("script", "fault"),
    [
        # Slurm sends this signal a minute before the time is up, to the script alone.
        further("multi_worker", "SIGTERM to the script"),
        further("parameter_server", "SIGTERM to the script"),
        further("multi_worker", "SIGKILL to the last task"),
        further("parameter_server", "SIGKILL to the first task"),
    ],
)
def test_a_job_that_is_queued_again_goes_on(
    script: str, fault: str, tmp_path: pathlib.Path
) -> None:
    job = Job(script, tmp_path)
    flags = (*TRAINING, "--train_steps=400")
    with job.start(*flags, *SLOW) as process:
        processes.wait_until(
            lambda: bool(checkpoints_of(job.run_dir)), "a checkpoint", process
        )
        if fault == "SIGTERM to the script":
            process.send_signal(signal.SIGTERM)
            expected = ExitCode.TERMINATED
        else:
            rank = 0 if "first" in fault else -1
            os.kill(job.tasks()[rank], signal.SIGKILL)
            expected = ExitCode.PEER_LOST
        done = processes.end_of(process)
    assert done.returncode == expected, done.stderr
    assert job.is_requeued()
    first_step = int(checkpoints_of(job.run_dir)[-1].removeprefix("step-"))
    assert 0 < first_step < 400
    with job.start(*flags, restarts=1) as process:
        done = processes.end_of(process)
    assert done.returncode == 0, done.stderr
    assert f", continued at step {first_step}\n" in done.stdout
    assert not job.is_requeued()
    assert_complete(job, steps=400)


def fake_python(folder: pathlib.Path, shell: str) -> pathlib.Path:
    """Makes a folder with a program `python` that runs shell commands instead."""
    folder.mkdir()
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{shell}\n", "utf-8")
    path.chmod(0o755)
    return folder


# A task ends with the exit code at its rank.
ENDS_WITH = "set -- {codes}\nshift $SLURM_PROCID\nexit $1"
ENDS_LATE = """
signals=0
trap 'signals=$((signals + 1)); touch signaled.$SLURM_PROCID' TERM
touch ready.$SLURM_PROCID
until [ $signals -ge 2 ]; do sleep 0.05; done
sleep 0.5
[ -e requeued ] || touch ended.$SLURM_PROCID
exit 143
"""


# Exit codes of the first tasks, restarts so far, and whether the job is queued again.
# 137 and 253 are srun's codes for a task that the kernel has killed, by signal 9 and
# for lack of memory. docs/reliability.md explains the others.
ENDINGS = {
    "done": ((0, 0), 0, False),
    "bug": ((ExitCode.BUG,), 0, False),
    "usage": ((ExitCode.USAGE,), 0, False),
    "diverged": ((ExitCode.DIVERGED,), 0, False),
    "different": ((ExitCode.DIFFERENT,), 0, False),
    "interrupted": ((ExitCode.INTERRUPTED,), 0, False),
    "a peer lost": ((0, ExitCode.PEER_LOST), 0, True),
    "lost often": ((0, ExitCode.PEER_LOST), 19, True),
    "lost too often": ((0, ExitCode.PEER_LOST), 20, False),
    "terminated": ((ExitCode.TERMINATED, ExitCode.TERMINATED), 0, True),
    "terminated often": ((ExitCode.TERMINATED,), 100, True),
    "killed": ((137, ExitCode.PEER_LOST), 0, True),
    "no memory": ((253, ExitCode.PEER_LOST), 0, True),
    "no memory too often": ((253, ExitCode.PEER_LOST), 20, False),
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_only_what_may_help_is_done_again(
    script: str, ending: str, tmp_path: pathlib.Path
) -> None:
    codes, restarts, again = ENDINGS[ending]
    job = Job(script, tmp_path)
    all_codes = [*codes, *[0] * (len(SCRIPTS[script]) - len(codes))]
    codes_in_words = " ".join(str(int(code)) for code in all_codes)
    first = fake_python(tmp_path / "first", ENDS_WITH.format(codes=codes_in_words))
    with job.start(restarts=restarts, first=[first]) as process:
        done = processes.end_of(process)
    assert done.returncode == max(codes), done.stderr
    assert job.is_requeued() == again


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_second_sigterm_does_not_end_the_wait(
    script: str, tmp_path: pathlib.Path
) -> None:
    """Slurm sends a second when the time is up, and the tasks may still be saving."""
    job = Job(script, tmp_path)
    first = fake_python(tmp_path / "first", ENDS_LATE)
    number = len(SCRIPTS[script])

    def count(name: str) -> int:
        return len([*tmp_path.glob(f"{name}.*")])

    with job.start(first=[first]) as process:
        for name in ("ready", "signaled"):
            everybody = functools.partial(lambda name: count(name) == number, name)
            processes.wait_until(everybody, f"all tasks are {name}", process)
            process.send_signal(signal.SIGTERM)
        done = processes.end_of(process)
    assert done.returncode == ExitCode.TERMINATED, done.stderr
    assert job.is_requeued()
    # A task writes this only if the script has not yet requested the requeue.
    assert count("ended") == number


def test_sbatch_is_asked_for_what_the_scripts_rely_on() -> None:
    for script, tasks in SCRIPTS.items():
        asked = Job(script, FOLDER).directives()
        assert int(asked["nodes"]) * int(asked["ntasks-per-node"]) == len(tasks)
        assert "requeue" in asked
        # B means the script alone. The signal comes long before the end, because a
        # checkpoint takes up to 10 s.
        assert re.fullmatch(r"B:TERM@\d+", asked["signal"])
        assert int(asked["signal"].partition("@")[2]) >= 30
        # Otherwise a job that is queued again would erase its earlier output.
        assert asked["open-mode"] == "append"
        # So that it goes on where it was.
        text = (FOLDER / f"{script}.sbatch").read_text(encoding="utf-8")
        assert "--resume=auto" in text
