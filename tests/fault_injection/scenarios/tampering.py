"""Scenarios of run folders that were changed to reach files outside of them."""

import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Mapping

from tests import processes
from tests.fault_injection.scenario import Scenario
from trainers.config.groups import by_group

# A change of a run folder; the second folder is outside of the run.
Tampering = Callable[[pathlib.Path, pathlib.Path], None]

SMALL_RUN = (
    *("--model=mlp", "--hidden_units=8", "--checkpoint_every_steps=2"),
    *("--set=report.record_steps=true", "--steps_per_loop=1", "--jit_compile=off"),
)
LENGTH = "--train_steps=2"
# These flags continue the run, which reads and writes nearly all of its files.
RESUME = (*SMALL_RUN, "--train_steps=4", "--resume=auto")


def moved_out(part: str) -> Tampering:
    """Returns a change that moves a part of a run outside and leaves a link."""

    def change(run: pathlib.Path, outside: pathlib.Path) -> None:
        path = run / part
        there = outside / path.name
        if path.exists():
            path.rename(there)
        else:
            there.mkdir()
        path.symlink_to(os.path.relpath(there, path.parent))

    return change


def linked(part: str, target: str) -> Tampering:
    """Returns a change that replaces a file by a link to a file outside."""

    def change(run: pathlib.Path, outside: pathlib.Path) -> None:
        path = run / part
        path.unlink(missing_ok=True)
        path.symlink_to(outside / target)

    return change


def piped(part: str) -> Tampering:
    """Returns a change that replaces a file by a pipe that nobody writes to."""

    def change(run: pathlib.Path, outside: pathlib.Path) -> None:
        del outside
        path = run / part
        path.unlink()
        os.mkfifo(path)

    return change


def configured(**settings: str) -> Tampering:
    """Returns a change that lets config.json name files outside, in {outside}."""

    def change(run: pathlib.Path, outside: pathlib.Path) -> None:
        path = run / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        added = {name: v.format(outside=outside) for name, v in settings.items()}
        for group, changed in by_group(added).items():
            content[group] |= changed
        path.write_text(json.dumps(content), encoding="utf-8")

    return change


_FILES = ("config.json", "metrics.jsonl", "result.json")
_FOLDERS = (
    *("checkpoints", "tb", "tb/train", "tb/eval", "tb/evaluator", "logs", "recording"),
    *("checkpoints/step-00000002", "checkpoints/phase-2", "step_phases"),
)
_WRITTEN = (
    *("logs/chief-0.log", "logs/worker-1.log", "logs/ps-0.ending", "measured.json"),
    *("recording/step-00000003.npz", "metrics.jsonl", "result.json"),
)

# Every command refuses each of these.
TAMPERINGS: Mapping[str, Tampering] = {
    **{f"{part} is a link": moved_out(part) for part in (*_FILES, *_FOLDERS)},
    **{f"{p} leads to a file": linked(p, "precious.txt") for p in _WRITTEN},
    **{f"{p} leads to a new file": linked(p, "new.txt") for p in _WRITTEN},
    **{f"{part} is a pipe": piped(part) for part in _FILES},
}


def make_outside(folder: pathlib.Path) -> pathlib.Path:
    """Makes a folder whose content no command may change or print."""
    folder.mkdir()
    (folder / "precious.txt").write_text("secret")
    return folder


def _attempt(chosen: random.Random, folder: pathlib.Path) -> None:
    """Trains, tampers with the run, and runs commands that must refuse it."""
    processes.train(folder / "run", *SMALL_RUN, LENGTH)
    commands = (RESUME, ("--mode=evaluate",))
    for name in chosen.sample(sorted(TAMPERINGS), k=5):
        case = folder / name.replace("/", " ")
        case.mkdir()
        shutil.copytree(folder / "run", case / "run")
        outside = make_outside(case / "outside")
        TAMPERINGS[name](case / "run", outside)
        before = processes.contents(case)
        done = processes.run("--run_dir=run", *chosen.choice(commands), folder=case)
        assert done.returncode == 2, f"{name}: ended with {done.returncode}"
        *_, line = done.stderr.splitlines()
        assert line.startswith("error: "), f"{name}: {line}"
        assert "secret" not in done.stdout + done.stderr, f"{name}: content was shown"
        assert processes.contents(case) == before, f"{name}: something has changed"


SCENARIOS = (
    Scenario(
        name="tampered-run-folder",
        promise="nothing outside is read, written or deleted; exit 2, one line",
        tries=10,
        attempt=_attempt,
    ),
)
