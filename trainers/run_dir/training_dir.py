"""Folder of a run that this process trains: conditions for writing, and its files."""

import contextlib
import os
import pathlib
import re
from collections.abc import Mapping
from errno import EISDIR, ENOTDIR
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.files import (
    FolderLock,
    is_there,
    new_folder,
    unusable,
    write_json,
)
from trainers.config.config import Config
from trainers.run_dir.checkpoint_names import check_writable_run
from trainers.run_dir.continuation import check_same_training
from trainers.run_dir.run_dir import RunDir

_SCHEMA_VERSION = 1


class FolderGoneError(UsageError):
    """The folder of a run was deleted or moved while the run was at work."""


class TrainingDir(RunDir):
    """Folder of a run, which no other process writes once it has begun.

    Attributes:
      is_repeated: True if a `fit` after the present one has a checkpoint.
    """

    def __init__(self, config: Config):
        """Chooses a folder and checks that training may use it; writes nothing.

        Raises:
          UsageError: The folder holds other files, holds a run without --resume=auto,
            holds a run with other settings, or cannot be written or read.
        """
        path, events = config.run.run_dir, config.tracking.tensorboard_dir
        super().__init__(pathlib.Path(path) if path else default_path(config), events)
        self._epochs = config.length.epochs
        self._has_program = config.model.script is not None
        self._has_events = events is None
        names = ("checkpoints", "logs", *(["tb"] if self._has_events else []))
        self._folders = tuple(self.path / name for name in names)
        self._lock = FolderLock(self.path)
        self.is_repeated = False
        # Step of the newest row that a repeated `fit` finds.
        self._newest_row = -1
        try:
            check_writable_run(self.path)
            # `begin` checks again, after it has locked the folder.
            self._must_be_new = not self.holds_a_run
            if self._must_be_new:
                self._check_empty()
            else:
                self.check_own()
                self._check_continues(config)
        except OSError as error:
            raise unusable(self.path, error) from error

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

    def begin(self, config: Config, first_step: int, phase: int = 1) -> None:
        """Creates the folder, or discards metrics that follow the restored checkpoint.

        A `fit` is repeated if a later one has a checkpoint already, such as after a
        pruning. It adds no row that metrics.jsonl has, and keeps the result and the
        exports of the later ones.

        No other process can begin in this folder until the result is written, or, with
        a program, until this process ends.

        Raises:
          UsageError: The folder or --tensorboard_dir cannot be written, or another
            process writes to it.
        """
        if not self._has_events:
            # Imported late: command lines are checked before TensorFlow is loaded.
            from trainers.run_dir.event_dir import make_event_dir

            make_event_dir(self.tensorboard)
        try:
            self._lock_folder()
            self.is_repeated = self.has_later_checkpoint(phase)
            # A repeated `fit` adds no row that is there already.
            self._newest_row = -1
            if self.is_repeated:
                steps = (row["step"] for row in self.metrics.rows())
                self._newest_row = max(steps, default=-1)
            else:
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
        if row["step"] > self._newest_row:
            self.metrics.append(row)

    def discard_after(self, step: int) -> None:
        """Discards the metrics of later steps, after a rollback."""
        if not self.is_repeated:
            self.metrics.drop_after(step)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, the last file of a run, unless it is of a later `fit`."""
        self.require()
        if not (self.is_repeated and self._result.exists()):
            write_json(self._result, {"schema_version": _SCHEMA_VERSION, **result})
        # A program may train again.
        if not self._has_program:
            self._lock.release()

    def _lock_folder(self) -> None:
        if self._must_be_new:
            self.path.mkdir(parents=True, exist_ok=True)
        else:
            self.require()
        self._lock.acquire()
        if self._must_be_new and self.holds_a_run:
            raise UsageError(
                f"--run_dir={self.path} has been filled by another process meanwhile: "
                "give every run a folder of its own."
            )

    def _begin(self, config: Config, first_step: int) -> None:
        kept = self.metrics.rows_until(first_step)
        self._result.unlink(missing_ok=True)
        # config.json is the first file, because a folder without it is not a run.
        resolved = config.replace(run_dir=str(self.path), resume="never")
        if self._epochs is not None:
            # A program's `fit` makes steps of them, which nobody has given.
            resolved = resolved.replace(train_steps=None, epochs=self._epochs)
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
