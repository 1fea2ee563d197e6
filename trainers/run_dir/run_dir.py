"""Run folder: its files, and conditions for writing."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Mapping
from errno import EISDIR, ENOTDIR
from typing import Any

from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.files import (
    FolderLock,
    check_own,
    is_there,
    new_folder,
    read_small,
    unusable,
    write_json,
)
from strategies.common.strict_json import parse_json
from trainers.config.config import Config
from trainers.config.file import config_from_file
from trainers.run_dir.checkpoint_manifest import DamagedError, read_commit
from trainers.run_dir.checkpoint_names import check_writable_run, checkpoints_in
from trainers.run_dir.continuation import check_same_training
from trainers.run_dir.metrics_file import MetricsFile

SCHEMA_VERSION = 1

# Files and folders that a run reads, writes or deletes. The content of a checkpoint is
# checked together with the checkpoint.
_PARTS = (
    *("config.json", "metrics.jsonl", "result.json", "measured.json"),
    *(
        "checkpoints",
        "export",
        "tb/train",
        "tb/eval",
        "tb/evaluator",
        "logs/*",
        "recording/*",
        "trackers/*",
    ),
)


class FolderGoneError(UsageError):
    """The folder of a run was deleted or moved while the run was at work."""


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
        self._has_events = tensorboard_dir is None
        names = ("checkpoints", "logs", *(["tb"] if self._has_events else []))
        self._folders = tuple(path / name for name in names)
        self._lock = FolderLock(path)
        self._must_be_new = False

    @classmethod
    def for_training(cls, config: Config) -> RunDir:
        """Chooses a folder and checks that training may use it.

        Args:
          config: Configuration of the run.

        Raises:
          UsageError: The folder holds other files, holds a run without --resume=auto,
            holds a run with other settings, or cannot be written or read.
        """
        path = config.run.run_dir
        folder = cls(
            pathlib.Path(path) if path else default_path(config),
            config.tracking.tensorboard_dir,
        )
        try:
            check_writable_run(folder.path)
            if folder.holds_a_run:
                folder.check_own()
                folder._check_continues(config)
            else:
                # `begin` checks again, after it has locked the folder.
                folder._must_be_new = True
                folder._check_empty()
        except OSError as error:
            raise unusable(folder.path, error) from error
        return folder

    @classmethod
    def of_existing(cls, path: str) -> RunDir:
        """Returns the folder of an existing run.

        Args:
          path: Path of the folder.

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

        Args:
          cluster: Cluster of the task.
          task: Name of the task.
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

    def phase_path(self, phase: int) -> pathlib.Path:
        """Returns the folder of the checkpoints of one phase of a run.

        Args:
          phase: Number of the call of `fit`, from 1.
        """
        return self.checkpoints / f"phase-{phase}" if phase > 1 else self.checkpoints

    def reached_step(self) -> int:
        """Returns the newest known step, from the metrics or from a checkpoint."""
        rows = self.metrics.rows()
        return max(rows[-1]["step"] if rows else 0, *self._all_checkpoints(), 0)

    def with_decisions(self, config: Config) -> Config:
        """Returns the configuration with what the run decided when it began.

        The last bits of a step depend on whether XLA compiles it.
        """
        if config.model.jit_compile != "auto" or not self.holds_a_run:
            return config
        was = self.read_config()
        if was.strategy.strategy != config.strategy.strategy:
            return config
        return config.replace(jit_compile=was.model.jit_compile)

    def begin(self, config: Config, first_step: int) -> None:
        """Creates the folder, or discards metrics that follow the restored checkpoint.

        No other process can begin in this folder until the result is written or this
        process ends.

        Args:
          config: Configuration of the run.
          first_step: Number of updates already applied.

        Raises:
          UsageError: The folder or --tensorboard_dir cannot be written, or another
            process writes to it.
        """
        if not self._has_events:
            # Imported late: command lines are checked before TensorFlow is loaded.
            from trainers.run_dir.event_dir import make_event_dir

            make_event_dir(self.tensorboard)
        try:
            self._begin(config, first_step)
        except OSError as error:
            if self._must_be_new:
                # rmdir removes only an empty folder, which this call has found or
                # created.
                with contextlib.suppress(OSError):
                    self.path.rmdir()
            raise unusable(self.path, error) from error

    def require(self) -> None:
        """Checks that the folder of a run that has begun is still there.

        Raises:
          FolderGoneError: it was deleted or moved.
        """
        if not self._config.exists():
            raise FolderGoneError(
                f"--run_dir={self.path} was deleted or moved while the run was writing "
                "to it, and what it had saved there went with it: the run has stopped; "
                "start it again in a folder that stays."
            )

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        self.require()
        self.metrics.append(row)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, the last file of a run."""
        self.require()
        write_json(self._result, {"schema_version": SCHEMA_VERSION, **result})
        self._lock.release()

    def add_to_result(self, **values: Any) -> None:
        """Adds values that only another process knows to an existing result.json.

        Args:
          **values: Values by key.
        """
        result = self.read_result()
        if result is not None:
            write_json(self._result, {**result, **values})

    def _begin(self, config: Config, first_step: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        if self._must_be_new and self.holds_a_run:
            raise UsageError(
                f"--run_dir={self.path} has been filled by another process meanwhile: "
                "give every run a folder of its own."
            )
        kept = self.metrics.rows_until(first_step)
        self._result.unlink(missing_ok=True)
        # config.json is the first file, because a folder without it is not a run.
        resolved = config.replace(run_dir=str(self.path), resume="never")
        write_json(self._config, resolved.to_file())
        for path in self._folders:
            path.mkdir(exist_ok=True)
        self.metrics.write(kept)
        # A program may train again in the same folder.
        self._must_be_new = False

    def _check_empty(self) -> None:
        if not self.path.exists():
            return
        # A run that is killed at its very start may leave this file and no other.
        harmless = {f".{self._config.name}.writing"}
        if any(path.name not in harmless for path in self.path.iterdir()):
            raise UsageError(
                f"--run_dir={self.path} holds files that are not a run: choose a "
                "new or empty folder."
            )

    def _check_continues(self, config: Config) -> None:
        if config.run.resume != "auto":
            raise UsageError(
                f"--run_dir={self.path} already holds a run: add --resume=auto to "
                "continue it, or choose another folder."
            )
        for path in self._folders:
            if is_there(path) and not path.is_dir():
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path))
        # A wrong kind of file is reported here, before TensorFlow is loaded.
        for path in (self.metrics.path, self._result):
            if path.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
        check_same_training(self.path, self.read_config(), config)


def default_path(config: Config) -> pathlib.Path:
    """Returns a new folder named after strategy, model and data set."""
    # Some programs read the part before a colon as a host name; a model or data set
    # may be in a file, whose name may have brackets (`check_is_no_pattern`).
    name = f"{config.strategy.strategy}-{config.model.model}-{config.data.dataset}"
    if config.model.script is not None:
        name = f"{config.strategy.strategy}-{pathlib.Path(config.model.script).stem}"
    return new_folder(re.sub(r"[:/\\\[\]]+", "-", name))
