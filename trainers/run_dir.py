"""The folder of a run: what is in it and when it may be written to."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from strategies.settings import UsageError
from trainers.config import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    config_from_file,
)

SCHEMA_VERSION = 1

# What a run is continued with must not change what is being trained.
_FIXED = ["seed", "global_batch_size"] + [
    field.name
    for group in (ModelConfig, DataConfig, OptimizerConfig)
    for field in dataclasses.fields(group)
]


class RunFolder:
    """Paths and files of one run. Making this object writes nothing."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tb"
        self._config = path / "config.json"
        self._metrics = path / "metrics.jsonl"
        self._result = path / "result.json"

    @classmethod
    def for_training(cls, config: Config) -> RunFolder:
        """Decides on a folder and checks that training may use it.

        Raises:
          UsageError: it holds something else, holds a run and --resume=auto was
            not given, holds a run of other settings, or cannot be written.
        """
        folder = cls(pathlib.Path(config.run.run_dir or default_path(config)))
        _check_writable(folder.path)
        if folder.holds_a_run:
            folder._check_continues(config)
        elif folder.path.exists() and any(folder.path.iterdir()):
            raise UsageError(
                f"--run_dir={folder.path} holds files that are not a run: choose a "
                "new or empty folder."
            )
        return folder

    @classmethod
    def of_existing(cls, path: str) -> RunFolder:
        """A folder that holds a run.

        Raises:
          UsageError: it does not.
        """
        folder = cls(pathlib.Path(path))
        if not folder.holds_a_run:
            raise UsageError(
                f"--run_dir={path} is not the folder of a run: it has no config.json."
            )
        return folder

    @property
    def holds_a_run(self) -> bool:
        return self._config.is_file()

    def log_path(self, task: str) -> pathlib.Path:
        return self.path / "logs" / f"{task}.log"

    def read_config(self) -> Config:
        """Raises UsageError if config.json is damaged."""
        return config_from_file(str(self._config))

    def read_result(self) -> Mapping[str, Any] | None:
        """result.json, or None if the run has not ended properly."""
        try:
            return json.loads(self._result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def begin(self, config: Config, first_step: int) -> None:
        """Makes the folder, or takes back what a run wrote after its checkpoint."""
        for path in (self.checkpoints, self.tensorboard, self.path / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        self._result.unlink(missing_ok=True)
        resolved = config.replace(run_dir=str(self.path), resume="never")
        _write_atomically(self._config, resolved.to_dict())
        kept = [row for row in self._read_metrics() if row["step"] <= first_step]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        self._metrics.write_text(lines, encoding="utf-8")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_result(self, result: Mapping[str, Any]) -> None:
        _write_atomically(self._result, {"schema_version": SCHEMA_VERSION, **result})

    def _read_metrics(self) -> list[dict[str, Any]]:
        """Whole lines only: the last one of a killed run may be torn."""
        if not self._metrics.exists():
            return []
        rows = []
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
        return rows

    def _check_continues(self, config: Config) -> None:
        if config.run.resume != "auto":
            raise UsageError(
                f"--run_dir={self.path} already holds a run: add --resume=auto to "
                "continue it, or choose another folder."
            )
        was, now = self.read_config().to_dict(), config.to_dict()
        changed = [name for name in _FIXED if was[name] != now[name]]
        if changed:
            differences = ", ".join(
                f"--{name}={now[name]} (was {was[name]})" for name in changed
            )
            raise UsageError(
                f"--resume=auto cannot continue {self.path} with {differences}: use "
                "the run's own settings, or another --run_dir."
            )


def default_path(config: Config) -> str:
    """A name that tells what was run, with the time to keep names apart."""
    when = time.strftime("%Y%m%d-%H%M%S")
    return (
        f"runs/{config.strategy.strategy}-{config.model.model}-"
        f"{config.data.dataset}-{when}"
    )


def _check_writable(path: pathlib.Path) -> None:
    """Checks without making anything, so that a refused run leaves no folder."""
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        reason = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} is not writable"
    else:
        return
    raise UsageError(f"--run_dir={path} cannot be used: {reason}; choose another.")


def _write_atomically(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Readers see the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
