"""Checks that `make coverage` counts the lines of every process, however it ends."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests import processes

pytest.importorskip("coverage", reason="coverage is missing: make install-test")

# A task that has lost its peers ends by os._exit.
_PARENT_OF_A_TASK_THAT_EXITS = """
import subprocess, sys
task = "from trainers.cli.app import _leave, Console; _leave(138, Console())"
assert subprocess.run([sys.executable, "-c", task]).returncode == 138
"""


def executed(folder: pathlib.Path, *program: str) -> dict[str, list[int]]:
    """Returns the lines of each file that a command runs, in all its processes."""
    data, report = f"--data-file={folder / 'data'}", folder / "report.json"
    for words in (
        ["run", data, *program],
        ["combine", "--quiet", data],
        ["json", "--quiet", data, f"-o{report}"],
    ):
        # A new process, because coverage has to start before the modules that it
        # measures are imported.
        done = subprocess.run(
            [sys.executable, "-m", "coverage", *words],
            cwd=processes.ROOT,
            env=processes.environment(),
            capture_output=True,
            text=True,
            timeout=processes.PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {name: file["executed_lines"] for name, file in files.items()}


def numbers_of(name: str, words: str) -> set[int]:
    """Returns the numbers of the lines of a file that hold certain words."""
    text = (processes.ROOT / name).read_text(encoding="utf-8").splitlines()
    numbers = {number for number, line in enumerate(text, 1) if words in line}
    assert numbers, f"{name} has no {words} any more"
    return numbers


@pytest.mark.exhaustive
def test_lines_of_a_process_that_ends_at_once_are_counted(
    tmp_path: pathlib.Path,
) -> None:
    script = tmp_path / "starts_one.py"
    script.write_text(_PARENT_OF_A_TASK_THAT_EXITS, encoding="utf-8")
    lines = executed(tmp_path, str(script))
    left = "strategies/common/native_log.py"
    # Coverage writes its data in this call, so it does not count the line after it.
    assert numbers_of(left, "atexit._run_exitfuncs()") <= set(lines[left])
    name = "trainers/cli/app.py"
    assert not numbers_of(name, "_run(config, argv, console)") <= set(lines[name])


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.exhaustive
def test_lines_that_tasks_of_a_cluster_run_are_counted(tmp_path: pathlib.Path) -> None:
    flags = ("--strategy=parameter_server", "--model=mlp", "--train_steps=20")
    lines = executed(
        tmp_path, "-m", "trainers.main", f"--run_dir={tmp_path / 'run'}", *flags
    )
    for name, words in {
        # A line of the launcher, of the chief, of a worker, and a server's last line.
        "strategies/launcher/launcher.py": "self._tasks.start()",
        "trainers/modes/train.py": "task.exit_code = task.train(",
        "strategies/ps/async_worker.py": "self._",
        "strategies/ps/server.py": "wait_until_gone([address], _SECONDS_TO_GIVE_BACK)",
    }.items():
        assert numbers_of(name, words) & set(lines[name]), name
