"""Run folder: its paths, and the files that are read from it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.files import (
    append_whole,
    check_own,
    read_small,
    unusable,
    without_nan,
    write_atomically,
    write_json,
)
from strategies.common.strict_json import parse_json
from trainers.config.config import Config
from trainers.config.file import config_from_file
from trainers.run_dir.checkpoint_manifest import DamagedError, read_commit
from trainers.run_dir.checkpoint_names import checkpoints_in

# Files and folders that a run reads, writes or deletes. The content of a checkpoint is
# checked together with the checkpoint.
_PARTS = (
    "config.json", "metrics.jsonl", "result.json", "measured.json",
    # Later trainings of a program have a folder each in that of the checkpoints.
    "checkpoints/*", "export", "tb/train", "tb/eval", "tb/evaluator",
    "logs/*", "recording/*", "trackers/*", "step_phases/*",
)  # fmt: skip


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: pathlib.Path, tensorboard_dir: str | None = None):
        """Sets the paths; writes nothing.

        Args:
          path: Path of the folder.
          tensorboard_dir: Folder or URL in which the event files have a folder with the
            name of the run; None for the run folder.
        """
        self.path = path
        self.checkpoints = path / "checkpoints"
        # A string, because pathlib would change the slashes of a URL.
        self.tensorboard = str(path / "tb")
        if tensorboard_dir is not None:
            self.tensorboard = f"{tensorboard_dir.rstrip('/')}/{path.absolute().name}"
        self.exports = path / "export"
        self.trackers = path / "trackers"
        self._config = path / "config.json"
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self._result = path / "result.json"

    @classmethod
    def of_existing(cls, path: str) -> RunDir:
        """Returns the folder of an existing run.

        Raises:
          UsageError: The folder holds no run.
        """
        folder = cls(pathlib.Path(path))
        try:
            holds_a_run = folder.holds_a_run
        except OSError as error:
            raise unusable(folder.path, error) from error
        if not holds_a_run:
            raise UsageError(
                f"--run_dir={path} is not the folder of a run: it has no config.json; "
                "give the --run_dir of a run."
            )
        folder.check_own()
        return folder

    def check_own(self) -> None:
        """Checks that no part of the run leads out of the folder, if it exists.

        Raises:
          UsageError: A part leads out of the folder; the message names it.
        """
        try:
            if self.path.is_dir():
                check_own(self.path, _PARTS)
        except OSError as error:
            raise unusable(self.path, error) from error

    @property
    def name(self) -> str:
        """Name of the run for people: its folder and the one above."""
        return "/".join(self.path.absolute().parts[-2:])

    @property
    def holds_a_run(self) -> bool:
        return self._config.is_file()

    def log_path(self, task: str) -> pathlib.Path:
        return self.path / "logs" / f"{task}.log"

    def shutdown_path(self, cluster: Cluster, task: str) -> str:
        """Returns the path of a task's shutdown file.

        The chief writes the files; the tasks that serve the chief read them. A second
        command with this folder is refused, and its chief ends no task of the first.
        """
        return str(self.path / "logs" / f"{task}-{cluster.digest}.ending")

    def read_config(self) -> Config:
        """Reads config.json.

        Raises:
          UsageError: The file is damaged.
        """
        return config_from_file(
            str(self._config),
            name=f"--run_dir={self.path}: its config.json",
            remedy="restore it from a copy, or choose another folder",
        )

    def read_result(self) -> Mapping[str, Any] | None:
        """Returns result.json, or None if the run has not ended properly."""
        try:
            result = parse_json(read_small(self._result))
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def saved_step(self) -> int:
        """Returns the step of the newest undamaged checkpoint; 0 without one."""
        for step, folder in sorted(self._all_checkpoints().items(), reverse=True):
            with contextlib.suppress(DamagedError):
                return read_commit(folder, step).step
        return 0

    def first_step_of(self, phase: int) -> int | None:
        """Returns the step from which a phase has begun; None if nothing says so."""
        found = self.state_of(phase).get("phase")
        return found.get("first_step") if isinstance(found, dict) else None

    def state_of(self, phase: int) -> Mapping[str, Any]:
        """Returns the state of a phase's newest undamaged checkpoint; {} without one.

        Its form is not checked.
        """
        saved = checkpoints_in(self.phase_path(phase))
        for step, folder in sorted(saved.items(), reverse=True):
            with contextlib.suppress(DamagedError):
                return read_commit(folder, step).state
        return {}

    def num_phases(self) -> int:
        """Returns the number of phases that have begun."""
        paths = map(self.phase_path, itertools.count(1))
        return len(list(itertools.takewhile(pathlib.Path.exists, paths)))

    def _all_checkpoints(self) -> Mapping[int, pathlib.Path]:
        """Returns the paths of all checkpoints by step, damaged ones included."""
        folders = [self.checkpoints, *self.checkpoints.glob("phase-*")]
        return {s: path for f in folders for s, path in checkpoints_in(f).items()}

    def has_ended(self, phase: int) -> bool:
        """Returns whether a phase was completed, or is followed by another phase."""
        is_followed = self.phase_path(phase + 1).exists()
        # A run may also fail after its last step, as in `on_train_end` of a callback.
        result = self.read_result() or {}
        return is_followed or result.get("status") == "completed"

    def has_later_checkpoint(self, phase: int) -> bool:
        """Returns whether a later phase has a checkpoint."""
        later = map(self.phase_path, itertools.count(phase + 1))
        begun = itertools.takewhile(pathlib.Path.exists, later)
        return any(map(checkpoints_in, begun))

    def end_of(self, phase: int) -> float | None:
        """Returns when a phase was saved last, in seconds since 1970; None before."""
        if not self.has_ended(phase):
            return None
        saved = checkpoints_in(self.phase_path(phase)).values()
        return max((path.stat().st_mtime for path in saved), default=None)

    def phase_path(self, phase: int) -> pathlib.Path:
        """Returns the folder of the checkpoints of one call of `fit`, from 1."""
        return self.checkpoints / f"phase-{phase}" if phase > 1 else self.checkpoints

    def reached_step(self) -> int:
        """Returns the newest known step, from the metrics or from a checkpoint."""
        rows = self.metrics.rows()
        return max(rows[-1]["step"] if rows else 0, *self._all_checkpoints(), 0)

    def add_to_result(self, **values: Any) -> None:
        """Adds values that only another process knows to an existing result.json."""
        result = self.read_result()
        if result is not None:
            write_json(self._result, {**result, **values})


class MetricsFile:
    """Rows of metrics.jsonl, each a JSON object with its `step`, one per line."""

    def __init__(self, path: pathlib.Path):
        """Sets the path; the file may not exist yet."""
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, without lines that are not complete."""
        if not self.path.exists():
            return []
        rows = []
        text = self.path.read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n"):
            try:
                row = json.loads(line)
            # A killed run may leave its last line truncated.
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
        return rows

    def rows_until(self, step: int) -> list[dict[str, Any]]:
        """Returns the rows up to and including a step."""
        return [row for row in self.rows() if row["step"] <= step]

    def append(self, row: Mapping[str, Any]) -> None:
        append_whole(self.path, json.dumps(without_nan(row)) + "\n")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all rows."""
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def drop_after(self, step: int) -> None:
        """Removes the rows of later steps."""
        self.write(self.rows_until(step))


def tensorboard_command(logdir: object) -> str:
    """Returns the command that shows event files in TensorBoard, on this machine."""
    # The program of the same environment, which need not be on the PATH.
    program = pathlib.Path(sys.executable).with_name("tensorboard")
    if not program.exists():
        words = [sys.executable, "-m", "tensorboard.main"]
    else:
        relative = os.path.relpath(program)
        # A relative path is shorter and can be pasted in the current folder.
        words = [str(program) if relative.startswith("..") else relative]
    return shlex.join([*words, f"--logdir={logdir}", "--host=localhost"])
