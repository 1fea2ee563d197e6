"""Checkpoints, written atomically and verified before use.

A checkpoint is a folder `step-00000500` that holds the files of tf.train.Checkpoint and
a commit.json (see `trainers.run_dir.checkpoint_manifest`). It is written under another
name and renamed once all files are on disk, so that a run killed at any moment leaves
no partial checkpoint. TensorFlow's own CheckpointManager trusts a text file that lists
paths, and deletes the paths in it; this module relies only on the names of folders.
"""

import hashlib
import logging
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.files import remove_path, sync_to_disk
from trainers.run_dir.checkpoint_manifest import (
    Commit,
    DamagedError,
    Variable,
    read_commit,
    write_commit,
)
from trainers.run_dir.checkpoint_names import checkpoints_in, name_of
from trainers.run_dir.train_state import check_state

# Prefix of folders that are being written or removed.
_UNFINISHED = ".writing-"
# Further state of the strategy's replicas: name of its file and of its entry in
# commit.json.
_REPLICAS = "replicas"


class Checkpoints:
    """Checkpoints of one run."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        step: tf.Variable,
        keep: int,
        loss_scale: Sequence[keras.Variable] = (),
        replica_state: Sequence[tf.Variable] = (),
    ):
        """Prepares the objects to save; touches no file.

        Args:
          folder: Folder of all checkpoints of the run.
          model: Model with weights and layer state.
          optimizer: Built optimizer.
          step: Number of applied updates.
          keep: Number of newest checkpoints to keep.
          loss_scale: Variables of the loss's scale.
          replica_state: Further state of the strategy's replicas. It is restored only
            from a checkpoint with equally many variables of equal names and shapes;
            other checkpoints are restored without it.
        """
        self._folder = folder
        self._step = step
        self._keep = keep
        of_optimizer = [*optimizer.variables, *loss_scale]
        self._owners = {"model": model.weights, "optimizer": of_optimizer}
        self._checkpoint = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            step=step,
            loss_scale=[variable.value for variable in loss_scale],
        )
        saved = [*model.weights, *of_optimizer]
        if untracked := _untracked(self._checkpoint, saved):
            self._checkpoint.untracked = untracked
        self._replica_state = replica_state
        self._replicas = tf.train.Checkpoint(variables=list(replica_state))
        values = [variable.value for variable in saved]
        self._write_variables = _writer(self._checkpoint, [*values, step])
        self._write_replicas = _writer(self._replicas, replica_state)

    def save(self, state: Mapping[str, Any]) -> pathlib.Path:
        """Writes a checkpoint, then removes the oldest checkpoints.

        Returns:
          Folder of the checkpoint.

        Raises:
          OSError, tf.errors.OpError: The checkpoint cannot be written. Earlier
            checkpoints are intact, and no partial checkpoint remains.
        """
        step = int(self._step.numpy())
        final = self._folder / name_of(step)
        temporary = self._folder / f"{_UNFINISHED}{final.name}"
        self.remove_unfinished()
        try:
            self._write(temporary, state)
            self._replace(final, temporary)
        except Exception:
            # A partial checkpoint on a full disk would prevent all further writes.
            self.remove_unfinished()
            raise
        self._remove_old(step)
        return final

    def remove_unfinished(self) -> None:
        """Removes folders that a killed run was writing or removing."""
        for leftover in self._folder.glob(f"{_UNFINISHED}step-*"):
            remove_path(leftover)

    def _write(self, temporary: pathlib.Path, state: Mapping[str, Any]) -> None:
        """Writes all files of a checkpoint to a folder with a temporary name."""
        temporary.mkdir(parents=True)
        self._write_variables(str(temporary / "variables"))
        variables = self._variables()
        if self._replica_state:
            self._write_replicas(str(temporary / _REPLICAS))
            variables[_REPLICAS] = self._replica_variables()
        step = int(self._step.numpy())
        write_commit(temporary, Commit(step=step, variables=variables, state=state))

    def restore_newest(self, warn: Callable[[str], None]) -> Mapping[str, Any] | None:
        """Restores the newest undamaged checkpoint.

        Returns:
          The `state` of the checkpoint, or None if there are no checkpoints.

        Raises:
          UsageError: All checkpoints are damaged, or one does not fit this model and
            optimizer.
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
        """Returns the steps of all checkpoints in ascending order."""
        return sorted(checkpoints_in(self._folder))

    def restore(self, step: int) -> Mapping[str, Any]:
        """Restores one checkpoint of a run that may remove it at the same time.

        Returns:
          The `state` of the checkpoint.

        Raises:
          DamagedError: The checkpoint is damaged or was removed.
          UsageError: The checkpoint does not fit this model and optimizer.
        """
        folder = self._folder / name_of(step)
        commit = _checked_commit(folder, step)
        self._check_fits(folder, commit)
        try:
            self._read(folder, commit)
        except UsageError:
            # Raises DamagedError if the read failed because the checkpoint was removed
            # meanwhile.
            read_commit(folder, step)
            raise
        return commit.state

    def remove_after(self, step: int) -> None:
        """Removes the checkpoints of later steps after a rollback."""
        for later, folder in checkpoints_in(self._folder).items():
            if later > step:
                remove_path(folder)

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
        """Compares types and shapes before anything is restored."""
        for owner, here in self._variables().items():
            there = commit.variables.get(owner, [])
            for ours, theirs in zip_longest(here, there):
                if ours != theirs:
                    raise _does_not_fit(
                        folder,
                        f"its {owner} has {theirs or 'no more variables'}, "
                        f"this one {ours or 'no more variables'}",
                    )

    def _read(self, folder: pathlib.Path, commit: Commit) -> None:
        """Restores one checkpoint and checks that all its values were used."""
        parts = {"variables": self._checkpoint}
        in_checkpoint = commit.variables.get(_REPLICAS)
        if self._replica_state and _is_same(in_checkpoint, self._replica_variables()):
            parts[_REPLICAS] = self._replicas
        try:
            for name, checkpoint in parts.items():
                status = checkpoint.read(str(folder / name))
                # Otherwise TensorFlow prints the unused values when the status object
                # is deleted.
                status.expect_partial()
                status.assert_consumed()
        except (ValueError, AssertionError, tf.errors.OpError) as error:
            words = " ".join(str(error).split())[:200]
            raise _does_not_fit(folder, words) from error

    def _replace(self, final: pathlib.Path, temporary: pathlib.Path) -> None:
        """Renames a finished checkpoint to its final name.

        An intact checkpoint of the same step stays in place, so that the run is never
        without one.
        """
        if _is_intact(final, int(self._step.numpy())):
            # This step is already saved: a signal right after a checkpoint saves again.
            shutil.rmtree(temporary)
            return
        remove_path(final)
        temporary.rename(final)
        sync_to_disk(self._folder)

    def _remove_old(self, step: int) -> None:
        """Removes all but the newest checkpoints up to this step.

        Checkpoints of later steps were skipped as damaged, because this step would
        otherwise not have been reached again. They do not count, and this run does not
        delete them.
        """
        steps = sorted(s for s in checkpoints_in(self._folder) if s <= step)
        for old in steps[: -self._keep]:
            # Renamed first, so that a run killed during the removal leaves no partial
            # checkpoint under a valid name.
            leftover = self._folder / f"{_UNFINISHED}{name_of(old)}"
            (self._folder / name_of(old)).rename(leftover)
            remove_path(leftover)


def _untracked(
    checkpoint: tf.train.Checkpoint, variables: Iterable[keras.Variable]
) -> list[tf.Variable]:
    """Returns the variables that TensorFlow does not find from a checkpoint's objects.

    Keras replaces attributes that are lists or dictionaries by its TrackedList and the
    like, whose content TensorFlow does not see
    (keras/src/backend/tensorflow/trackable.py): layers of a list, cells of an RNN, the
    optimizers of a MultiOptimizer.
    """
    found = {id(one) for one in tf.train.TrackableView(checkpoint).descendants()}
    return [v.value for v in variables if found.isdisjoint((id(v), id(v.value)))]


def _is_same(there: Sequence[Variable] | None, here: Sequence[Variable]) -> bool:
    """Returns whether a checkpoint has the variables of this strategy's replicas."""
    # Names matter, other than those of Keras: errors of gradients have the shapes of
    # averaged weights.
    return there == here and all(
        one.path == other.path for one, other in zip(there, here, strict=True)
    )


def _checked_commit(folder: pathlib.Path, step: int) -> Commit:
    """Returns the manifest of a checkpoint after checking its files and its state.

    Raises:
      DamagedError: A part of the checkpoint differs from its saved form.
    """
    commit = read_commit(folder, step)
    check_state(commit.state)
    return commit


def _writer(
    checkpoint: tf.train.Checkpoint, variables: Iterable[tf.Variable]
) -> Callable[[str], object]:
    """Returns the `write` of a checkpoint, traced once where other tasks hold some.

    TensorFlow would trace a function for every such checkpoint
    (tensorflow/python/checkpoint/functional_saver.py, `save`). It sends each function
    to all workers and waits with Python's lock held: one suspended worker would stop
    the chief for ever, and the thread that monitors the workers.
    """

    def write(path: str | tf.Tensor) -> None:
        # TensorFlow logs by absl, which gives a root logger without handlers one that
        # prints (absl/logging/__init__.py, `log`): all further warnings of TensorFlow
        # would appear twice, and a program's logging.basicConfig would do nothing.
        handler = logging.NullHandler()
        logging.root.addHandler(handler)
        try:
            checkpoint.write(path)
        finally:
            logging.root.removeHandler(handler)

    specs = map(tf.DeviceSpec.from_string, [v.device for v in variables])
    here = tf.DeviceSpec.from_string(tf.constant(0).device)
    if all((spec.job, spec.task) == (here.job, here.task) for spec in specs):
        return write
    return tf.function(write, input_signature=[tf.TensorSpec((), tf.string)])


def weights_sha256(model: keras.Model) -> str:
    """Returns a digest of all weights in the model's order: shapes, types, bytes."""
    digest = hashlib.sha256()
    for weight in model.weights:
        array = weight.numpy()
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


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
