"""Tests of SIGKILL inside of a save, and of the order of writes to disk."""

import pathlib
import random
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests import processes
from tests.fault_injection.continuation import assert_continues
from tests.fault_injection.scenarios.saves import FLAGS, killed_inside_a_save
from tests.trainers.run_dir.test_checkpoints import names_in
from trainers.main import main
from trainers.run_dir.checkpoints import Checkpoints


# tests/trainers/run_dir/test_checkpoints.py ends a save at seven places.
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_killed_inside_a_save_goes_on_to_the_same_weights(
    tmp_path: pathlib.Path,
) -> None:
    flags = (*FLAGS, "--strategy=one_device")
    killed_inside_a_save(random.Random(0), tmp_path, *flags)
    assert_continues(tmp_path / "run", *flags)


def test_leftovers_go_when_a_run_begins_and_not_only_when_it_saves(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / "checkpoints"
    flags = [
        *("main", "--model=mlp", "--hidden_units=8", "--jit_compile=off"),
        *(*processes.NO_EVALUATION, "--set=report.histogram_every_steps=none"),
        f"--run_dir={tmp_path}/run",
    ]
    assert main([*flags, "--train_steps=1"]) == 0
    (tmp_path / "run" / "result.json").unlink()
    for name in (".writing-step-00000000", ".writing-step-00000002"):
        (folder / name).mkdir()
        (folder / name / "variables.index").touch()
    seen = []
    save = Checkpoints.save

    def list_and_save(self: Checkpoints, state: Mapping[str, Any]) -> pathlib.Path:
        seen.append(names_in(folder))
        return save(self, state)

    monkeypatch.setattr(Checkpoints, "save", list_and_save)
    assert main([*flags, "--train_steps=2", "--resume=auto"]) == 0
    assert seen == [["step-00000001"]]


_CALLS = "fsync,fdatasync,rename,renameat,renameat2,openat"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
def test_what_a_power_cut_leaves_is_in_order(tmp_path: pathlib.Path) -> None:
    """Data is on disk before the file that declares it complete, and then its name."""
    log = tmp_path / "calls"
    strace = ["strace", "-f", "-y", "--seccomp-bpf", f"-etrace={_CALLS}", f"-o{log}"]
    command = [*strace, sys.executable, "-m", "trainers.main"]
    flags = (
        *("--model=mlp", "--train_steps=1", "--jit_compile=off"),
        *(*processes.NO_EVALUATION, "--set=report.histogram_every_steps=none"),
    )
    with processes.started(
        *flags, f"--run_dir={tmp_path}/run", folder=tmp_path, begin=command
    ) as process:
        ended = processes.end_of(process)
    assert ended.returncode == 0, ended.stderr
    calls = _calls_in(log.read_text(), f"{tmp_path}/run")
    unfinished = "checkpoints/.writing-step-00000001"
    data = [
        f"{unfinished}/variables.data-00000-of-00001",
        f"{unfinished}/variables.index",
    ]
    commit = f"{unfinished}/commit.json"
    steps = [
        *(("fsync", name) for name in data),
        ("write", commit),
        ("fsync", commit),
        ("fsync", unfinished),
        ("rename", "checkpoints/step-00000001"),
        ("fsync", "checkpoints"),
    ]
    positions = [calls.index(step) for step in steps]
    assert positions == sorted(positions), calls
    for name in data:
        kinds = [kind for kind, changed in calls if changed == name]
        # TensorFlow writes one under another name first.
        assert kinds in (["write", "fsync"], ["rename", "fsync"]), (name, calls)


def _calls_in(log: str, run: str) -> list[tuple[str, str]]:
    """Returns the kind of each system call, and the file of the run that it changes."""
    found = []
    for line in log.splitlines():
        paths = re.findall(rf'["<]{re.escape(run)}/([^">]*)[">]', line)
        if not paths or "= -1" in line:
            continue
        name = paths[-1].removesuffix("/")
        if "openat(" in line and "O_CREAT" in line:
            found.append(("write", name))
        elif "rename" in line:
            found.append(("rename", name))
        elif "sync(" in line:
            found.append(("fsync", name))
    return found
