"""Copies of the project in which one thing is wrong on purpose."""

import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

from tests import planted_project, processes
from tests.planted_project import PACKAGES

# A verification is several runs. Less than the 300 seconds that a test may take.
PATIENCE_SECONDS = 280.0

# A few steps of a small model, in which rounding cannot be taken for a fault.
SMALL = (
    *("--model=mlp", "--hidden_units=8", "--train_steps=3", "--dtype=float64"),
    "--jit_compile=off",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A line that is replaced.

    Attributes:
      file: Path of the file, below the project.
      right: The line, or a part of it.
      wrong: Text that replaces it.
    """

    file: str
    right: str
    wrong: str

    def __post_init__(self) -> None:
        # When tests are collected: most faults are planted by exhaustive ones only.
        text = (processes.ROOT / self.file).read_text(encoding="utf-8")
        assert text.count(self.right) == 1, f"{self.file} has changed"


def plant(
    folder: pathlib.Path, fault: Fault | Sequence[Fault] | None, **models: str
) -> None:
    """Makes the project in a folder: links, and copies of the faulty files.

    Args:
      folder: Existing folder.
      fault: Fault, or several in different files; none for the project as it is.
      models: Sources of further models, by name.
    """
    faults = [fault] if isinstance(fault, Fault) else fault or []
    for package in PACKAGES:
        _link(processes.ROOT / package, folder / package, faults, package)
    for name, source in models.items():
        (folder / "models" / f"{name}.py").write_text(source, encoding="utf-8")


def verify(
    folder: pathlib.Path, *flags: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Runs a verification in a folder; returns verify.json, empty if there is none.

    Runs the project in the folder if there is one, otherwise the tested project.
    """
    words = processes.command("--mode=verify", "--run_dir=verified", *flags)
    if (folder / "trainers").is_dir():
        words.insert(2, planted_project.__name__)
    done = processes.run_patiently(words, PATIENCE_SECONDS, folder)
    path = folder / "verified" / "verify.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return done, found


def _link(
    source: pathlib.Path, target: pathlib.Path, faults: Sequence[Fault], name: str
) -> None:
    """Real folders down to the faulty files, so that files can be added, else links."""
    target.mkdir()
    for path in source.iterdir():
        child = f"{name}/{path.name}"
        of_file = [fault for fault in faults if fault.file == child]
        if of_file:
            (fault,) = of_file
            text = path.read_text(encoding="utf-8")
            faulty = text.replace(fault.right, fault.wrong)
            (target / path.name).write_text(faulty, encoding="utf-8")
        elif any(fault.file.startswith(f"{child}/") for fault in faults):
            _link(path, target / path.name, faults, child)
        elif path.name != "__pycache__":
            (target / path.name).symlink_to(path)
