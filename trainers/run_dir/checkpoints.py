"""Checkpoints that are complete or absent, and checked before they are believed.

A checkpoint is a folder `step-00000500` that holds what tf.train.Checkpoint
writes and a commit.json (see `trainers.run_dir.checkpoint_manifest`). It is written under another name
and renamed when all of it is on disk, so that a run killed at any moment leaves no
half of one. TensorFlow's own CheckpointManager trusts a text file that lists paths,
and deletes what that file says; here only the names of folders count.
"""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.files import sync_to_disk
from trainers.run_dir.checkpoint_manifest import (
    Commit,
    DamagedError,
    Variable,
    read_commit,
    write_commit,
)
from trainers.run_dir.checkpoint_names import checkpoints_in, name_of
from trainers.run_dir.train_state import check_state

# Of what is being written, or removed.
_UNFINISHED = ".writing-"
# What the strategy's replicas hold besides: a file, and a part of commit.json.
_REPLICAS = "replicas"


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
        replica_state: Sequence[tf.Variable] = (),
    ):
        """Touches no file yet.

        Args:
          folder: where checkpoints are kept.
          model: weights and layer state.
          optimizer: with its variables made.
          step: number of applied updates.
          keep: how many of the newest to keep.
          replica_state: of the strategy. It is restored only from a checkpoint of
            as many replicas that have as much; all others fit without it.
        """
        self._folder = folder
        self._step = step
        self._keep = keep
        self._owners = {"model": model.weights, "optimizer": optimizer.variables}
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, step=step
        )
        self._replica_state = replica_state
        self._replicas = tf.train.Checkpoint(variables=list(replica_state))

    def save(self, state: Mapping[str, Any]) -> pathlib.Path:
        """Writes the present state, then removes the oldest checkpoints.

        Args:
          state: further values that a resumed run needs, as JSON has them.

        Raises:
          OSError, tf.errors.OpError: it cannot be written; those before are whole, and
            nothing is left of it.
        """
        step = int(self._step.numpy())
        final = self._folder / name_of(step)
        self.remove_unfinished()
        try:
            temporary = self._write(self._folder / f"{_UNFINISHED}{final.name}", state)
            self._replace(final, temporary)
        except Exception:
            # What fits on a disk that is full would keep all else from it.
            self.remove_unfinished()
            raise
        self._remove_old(step)
        return final

    def remove_unfinished(self) -> None:
        """Removes what is left of checkpoints that a killed run wrote or removed."""
        for leftover in self._folder.glob(f"{_UNFINISHED}step-*"):
            _remove(leftover)

    def _write(self, temporary: pathlib.Path, state: Mapping[str, Any]) -> pathlib.Path:
        """All files of a checkpoint, on disk, under a name that does not count."""
        temporary.mkdir(parents=True)
        self._checkpoint.write(str(temporary / "variables"))
        variables = self._variables()
        if self._replica_state:
            self._replicas.write(str(temporary / _REPLICAS))
            variables[_REPLICAS] = self._replica_variables()
        step = int(self._step.numpy())
        write_commit(temporary, Commit(step=step, variables=variables, state=state))
        return temporary

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
        found = checkpoints_in(self._folder)
        for step in sorted(found, reverse=True):
            try:
                commit = _checked_commit(found[step], step)
            except DamagedError as error:
                warn(f"checkpoint {found[step]} is damaged: {error}.")
                continue
            self._check_fits(found[step], commit)
            self._read(found[step], commit)
            return commit.state
        if found:
            raise UsageError(
                f"every checkpoint in {self._folder} is damaged: restore one from a "
                "copy, or choose another --run_dir to start from the beginning."
            )
        return None

    def steps(self) -> list[int]:
        """Of all checkpoints there are, ascending."""
        return sorted(checkpoints_in(self._folder))

    def restore(self, step: int) -> Mapping[str, Any]:
        """Restores one checkpoint of a run that may remove it meanwhile.

        Returns:
          The `state` it was saved with.

        Raises:
          DamagedError: it is damaged, or was removed.
          UsageError: it does not fit this model and optimizer.
        """
        folder = self._folder / name_of(step)
        commit = _checked_commit(folder, step)
        self._check_fits(folder, commit)
        try:
            self._read(folder, commit)
        except UsageError:
            # What is missing now was removed while it was read.
            read_commit(folder, step)
            raise
        return commit.state

    def remove_after(self, step: int) -> None:
        """Removes those of later steps, from which the run has gone back."""
        for later, folder in checkpoints_in(self._folder).items():
            if later > step:
                _remove(folder)

    def _variables(self) -> dict[str, list[Variable]]:
        return {
            owner: [
                Variable(path=v.path, dtype=str(v.dtype), shape=tuple(v.shape))
                for v in variables
            ]
            for owner, variables in self._owners.items()
        }

    def _replica_variables(self) -> list[Variable]:
        return [
            Variable(path=v.name, dtype=v.dtype.name, shape=tuple(v.shape))
            for v in self._replica_state
        ]

    def _check_fits(self, folder: pathlib.Path, commit: Commit) -> None:
        """Compares types and shapes before anything is restored.

        Paths are not compared: Keras numbers the names of what is made repeatedly.
        """
        for owner, here in self._variables().items():
            there = commit.variables.get(owner, [])
            for ours, theirs in zip_longest(here, there):
                if not _is_alike(ours, theirs):
                    raise _does_not_fit(
                        folder,
                        f"its {owner} has {theirs or 'no more variables'}, "
                        f"this one {ours or 'no more variables'}",
                    )

    def _read(self, folder: pathlib.Path, commit: Commit) -> None:
        """Restores one checkpoint, and makes sure that nothing is left over."""
        parts = {"variables": self._checkpoint}
        if self._replica_state and _are_alike(
            self._replica_variables(), commit.variables.get(_REPLICAS, [])
        ):
            parts[_REPLICAS] = self._replicas
        try:
            for name, checkpoint in parts.items():
                status = checkpoint.read(str(folder / name))
                # Otherwise TensorFlow prints what is left over once it is deleted.
                status.expect_partial()
                status.assert_consumed()
        except (ValueError, AssertionError, tf.errors.OpError) as error:
            words = " ".join(str(error).split())[:200]
            raise _does_not_fit(folder, words) from error

    def _replace(self, final: pathlib.Path, temporary: pathlib.Path) -> None:
        """Gives a finished checkpoint its name, at no moment being without one."""
        if _is_intact(final, int(self._step.numpy())):
            # Saved at this step already; a run saves again when a signal stops it.
            shutil.rmtree(temporary)
            return
        _remove(final)
        temporary.rename(final)
        sync_to_disk(self._folder)

    def _remove_old(self, step: int) -> None:
        """Keeps the newest up to this step.

        Those of later steps were passed over as damaged, or this step would not
        have been reached again: they neither count nor are they ours to delete.
        """
        steps = sorted(s for s in checkpoints_in(self._folder) if s <= step)
        for old in steps[: -self._keep]:
            # A run killed meanwhile leaves no half of one under its name.
            leftover = self._folder / f"{_UNFINISHED}{name_of(old)}"
            (self._folder / name_of(old)).rename(leftover)
            _remove(leftover)


def _checked_commit(folder: pathlib.Path, step: int) -> Commit:
    """Raises DamagedError if something of a checkpoint is not as it is saved."""
    commit = read_commit(folder, step)
    check_state(commit.state)
    return commit


def has_checkpoint(folder: pathlib.Path) -> bool:
    """Whether a folder holds any checkpoint, damaged or not."""
    return bool(checkpoints_in(folder))


def weights_sha256(model: keras.Model) -> str:
    """Digest of all weights, in the model's order: shapes, types and bytes."""
    digest = hashlib.sha256()
    for weight in model.weights:
        array = weight.numpy()
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _is_alike(one: Variable | None, other: Variable | None) -> bool:
    if one is None or other is None:
        return False
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def _are_alike(some: Sequence[Variable], others: Sequence[Variable]) -> bool:
    return all(_is_alike(*pair) for pair in zip_longest(some, others))


def _does_not_fit(folder: pathlib.Path, why: str) -> UsageError:
    return UsageError(
        f"checkpoint {folder} does not fit this model and optimizer ({why}): use the "
        "settings of its run's config.json."
    )


def _is_intact(folder: pathlib.Path, step: int) -> bool:
    try:
        _checked_commit(folder, step)
    except DamagedError:
        return False
    return True


def _remove(path: pathlib.Path) -> None:
    """Removes a folder, a file or a link, but never what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
