"""Checkpoints that are complete or absent, and checked before they are believed.

A checkpoint is a folder `step-00000500` that holds what tf.train.Checkpoint
writes and a commit.json with the size and digest of every file. It is written
under another name and renamed when all of it is on disk, so that a run killed
at any moment leaves no half of one. TensorFlow's own CheckpointManager trusts a
text file that lists paths, and deletes what that file says; here only the names
of folders count.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from strategies.settings import UsageError

_FOLDER_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY_PREFIX = ".writing-"
_COMMIT = "commit.json"
_SCHEMA_VERSION = 1


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        step: tf.Variable,
        keep: int,
    ):
        """Touches no file yet.

        Args:
          folder: where checkpoints are kept.
          model: weights and layer state.
          optimizer: with its variables made.
          step: number of applied updates.
          keep: how many of the newest to keep.
        """
        self._folder = folder
        self._step = step
        self._keep = keep
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, step=step
        )

    def save(self, state: Mapping[str, Any]) -> pathlib.Path:
        """Writes the present state, then removes the oldest checkpoints.

        Args:
          state: further values that a resumed run needs, as JSON has them.
        """
        self._remove_unfinished()
        name = f"step-{int(self._step.numpy()):08d}"
        temporary = self._folder / f"{_TEMPORARY_PREFIX}{name}"
        final = self._folder / name
        temporary.mkdir(parents=True)
        self._checkpoint.write(str(temporary / "variables"))
        _write_commit(temporary, int(self._step.numpy()), state)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_to_disk(self._folder)
        for old in _folders(self._folder)[self._keep :]:
            shutil.rmtree(old)
        return final

    def restore_newest(self, warn: Callable[[str], None]) -> Mapping[str, Any] | None:
        """Restores the newest checkpoint that is undamaged.

        Args:
          warn: told about each damaged one that is passed over.

        Returns:
          The `state` it was saved with, or None if there is no checkpoint at all.

        Raises:
          UsageError: there are checkpoints and every one is damaged, or one does
            not fit this model and optimizer.
        """
        folders = _folders(self._folder)
        for folder in folders:
            try:
                commit = _read_commit(folder)
            except (OSError, ValueError, KeyError, TypeError) as error:
                warn(f"checkpoint {folder} is damaged ({_one_line(error)}).")
                continue
            self._read(folder)
            return commit["state"]
        if folders:
            raise UsageError(
                f"every checkpoint in {self._folder} is damaged: restore one from a "
                "copy, or choose another --run_dir to start from the beginning."
            )
        return None

    def _read(self, folder: pathlib.Path) -> None:
        try:
            status = self._checkpoint.read(str(folder / "variables"))
            status.assert_existing_objects_matched()
        except (ValueError, AssertionError, tf.errors.OpError) as error:
            raise UsageError(
                f"checkpoint {folder} does not fit this model and optimizer "
                f"({_one_line(error)}): use the settings of its run's config.json."
            ) from error

    def _remove_unfinished(self) -> None:
        for leftover in self._folder.glob(f"{_TEMPORARY_PREFIX}step-*"):
            shutil.rmtree(leftover)


def has_checkpoint(folder: pathlib.Path) -> bool:
    """Whether a folder holds any checkpoint, damaged or not."""
    return bool(_folders(folder))


def weights_sha256(model: keras.Model) -> str:
    """Digest of all weights, in the model's order: shapes, types and bytes."""
    digest = hashlib.sha256()
    for weight in model.weights:
        array = weight.numpy()
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Finished checkpoints, newest first. Links are not followed."""
    if not folder.is_dir():
        return []
    found = {
        int(match.group(1)): path
        for path in folder.iterdir()
        if (match := _FOLDER_NAME.fullmatch(path.name))
        and path.is_dir()
        and not path.is_symlink()
    }
    return [found[step] for step in sorted(found, reverse=True)]


def _write_commit(folder: pathlib.Path, step: int, state: Mapping[str, Any]) -> None:
    """Writes the file that declares a checkpoint complete, after all others."""
    files = {}
    for path in sorted(folder.iterdir()):
        _sync_to_disk(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    commit = {
        "schema_version": _SCHEMA_VERSION,
        "step": step,
        "files": files,
        "state": dict(state),
    }
    path = folder / _COMMIT
    path.write_text(json.dumps(commit, indent=2) + "\n", encoding="utf-8")
    _sync_to_disk(path)
    _sync_to_disk(folder)


def _read_commit(folder: pathlib.Path) -> Mapping[str, Any]:
    """Reads commit.json and checks every file against it."""
    commit = json.loads((folder / _COMMIT).read_text(encoding="utf-8"))
    if commit["schema_version"] != _SCHEMA_VERSION:
        raise ValueError(f"schema_version {commit['schema_version']} is unknown")
    if f"step-{commit['step']:08d}" != folder.name:
        raise ValueError(f"commit.json is of step {commit['step']}")
    for name, expected in commit["files"].items():
        path = folder / name
        if path.parent != folder or path.is_symlink():
            raise ValueError(f"commit.json names {name!r}, which is outside")
        if (
            path.stat().st_size != expected["bytes"]
            or _sha256(path) != expected["sha256"]
        ):
            raise ValueError(f"{name} is not what was written")
    if (
        not isinstance(commit["state"], dict)
        or "variables.index" not in commit["files"]
    ):
        raise ValueError("commit.json is incomplete")
    return commit


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _sync_to_disk(path: pathlib.Path) -> None:
    """Without this a power cut can keep the new name and lose the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
