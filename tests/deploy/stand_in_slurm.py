"""Imitation of Slurm on one node, with the commands that deploy/slurm's scripts use.

    python stand_in_slurm.py srun OPTIONS... COMMAND...
    python stand_in_slurm.py scontrol requeue JOB

As in Slurm's manual, `srun` gives each task its variables, passes SIGTERM on to all,
and ends with the highest exit code of all tasks, 128 + n after signal n. It refuses all
other options, so that a script cannot use an option that has no imitation here.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_OPTIONS = re.compile(
    r"--(kill-on-bad-exit=0|distribution=block|cpus-per-task=[1-9]\d*)"
)
NODE = "localhost"
# Variable with the folder in which the commands record the requests of the scripts.
NOTES = "STAND_IN_SLURM_NOTES"


def srun(arguments: Sequence[str]) -> int:
    """Starts the tasks of a step and waits for them."""
    command = list(arguments)
    while command[0].startswith("-"):
        option = command.pop(0)
        if not _OPTIONS.fullmatch(option):
            raise SystemExit(f"srun: unknown option {option}")
    tasks: list[subprocess.Popen[bytes]] = []

    def pass_on(received: int, frame: FrameType | None) -> None:
        for task in tasks:
            task.send_signal(received)

    signal.signal(signal.SIGTERM, pass_on)
    number = int(os.environ["SLURM_NTASKS"])
    # A task runs before it is in the list, and would miss a signal at that moment.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for rank in range(number):
        environment = {**os.environ, **step_of(rank, number)}
        tasks.append(
            subprocess.Popen(command, env=environment, preexec_fn=_take_signals)
        )
    _take_signals()
    _notes("tasks").write_text(" ".join(str(task.pid) for task in tasks), "utf-8")
    codes = [task.wait() for task in tasks]
    return max(code if code >= 0 else 128 - code for code in codes)


def _take_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def step_of(rank: int, number: int) -> dict[str, str]:
    """Returns the variables of one task."""
    return {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(number),
        "SLURM_STEP_NODELIST": NODE,
        "SLURM_STEP_TASKS_PER_NODE": str(number),
        "SLURMD_NODENAME": NODE,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
    }


def scontrol(arguments: Sequence[str]) -> int:
    """Records the job that is to be queued again."""
    verb, job = arguments
    if verb != "requeue" or job != os.environ["SLURM_JOB_ID"]:
        raise SystemExit(f"scontrol: {arguments}")
    with _notes("requeued").open("a", encoding="utf-8") as file:
        file.write(f"{job}\n")
    return 0


def _notes(name: str) -> pathlib.Path:
    return pathlib.Path(os.environ[NOTES], name)


if __name__ == "__main__":
    programs = {"srun": srun, "scontrol": scontrol}
    sys.exit(programs[sys.argv[1]](sys.argv[2:]))
