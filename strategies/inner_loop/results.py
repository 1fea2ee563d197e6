"""Results of steps, packed into one vector for each step."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.common.types import StepPhases, StepResults, SyncedFlags

# Begins the name of each value that is no loss or metric and travels with their sums.
# No metric of a program has such a name.
INTERNAL = "\0"
STAGE_BUSY_SECONDS = f"{INTERNAL}stage_busy_seconds/"
PIPELINE_SECONDS = f"{INTERNAL}pipeline_seconds"
# Number of updates between reading the weights and applying a gradient.
STALENESS = f"{INTERNAL}staleness"
# Number of gradients that arrived after their update was applied without them.
DROPPED_GRADIENTS = f"{INTERNAL}dropped_gradients"
# Finite checks that replicas send as a sum, where none has the whole sum of gradients.
OWN_FINITE_CHECKS = f"{INTERNAL}own_finite_checks"
# Index of the first check that is not finite; NOTHING if all are.
NOT_FINITE = f"{INTERNAL}not_finite"
NOTHING = -1
# Start of a step, by the clock of the task that ran it, and the wait for its batch.
START = f"{INTERNAL}clock/start"
WAIT = f"{INTERNAL}clock/wait"
# Times at which a step's outputs and their sum were complete.
COMPUTED = f"{INTERNAL}clock/computed"
REDUCED = f"{INTERNAL}clock/reduced"
# Seconds in which each worker waited for its examples and computed, if others do.
WORKER_SECONDS = f"{INTERNAL}clock/worker_seconds"
_AGREED = f"{INTERNAL}agreed/"
_REPLICAS = _AGREED + "replicas"


def flags_as_sums(local_flags: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns a replica's `SyncedFlags` as sums, with a one to count the replicas."""
    names = [_AGREED + field.name for field in dataclasses.fields(SyncedFlags)]
    values = dict(zip(names, tf.unstack(local_flags), strict=True))
    return {**values, _REPLICAS: tf.ones([], tf.float64)}


def time_of(outputs: Any) -> tf.Tensor:
    """Returns the time at which outputs are computed, float64 seconds."""
    values = tf.nest.flatten(outputs, expand_composites=True)
    with tf.control_dependencies([value for value in values if value is not None]):
        return tf.timestamp()


def time_after(outputs: Any) -> tuple[tf.Tensor, Any]:
    """Returns the time at which outputs are computed, and the outputs after it.

    Returns:
      The time, float64 seconds, and the same structure.
    """
    now = time_of(outputs)
    values = tf.nest.flatten(outputs, expand_composites=True)
    with tf.control_dependencies([now]):
        after = [None if value is None else tf.identity(value) for value in values]
    return now, tf.nest.pack_sequence_as(outputs, after, expand_composites=True)


class Packing:
    """Layout of named tensors in one float64 vector, which a loop can carry.

    The names are known only once the step has been traced, too late to declare them as
    variables of a `tf.while_loop`. One vector needs no names.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}

    def pack(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        # Scalars first, as `in_a_vector` has them.
        names = sorted(values, key=lambda name: (values[name].shape.rank != 0, name))
        self._shapes = {name: tuple(values[name].shape) for name in names}
        return in_a_vector([values[name] for name in names])

    def columns(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns packed rows, with the [rows] of some scalars and zero elsewhere."""
        columns, at = [], 0
        for name, shape in self._shapes.items():
            if name in values:
                columns.append((at, values[name]))
            at += math.prod(shape)
        return tf.add_n(
            [v[:, None] * tf.one_hot(i, at, dtype=tf.float64) for i, v in columns]
        )

    def unpack(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the named arrays of a vector or of rows of vectors, [..., length]."""
        values = {}
        start = 0
        for name, shape in self._shapes.items():
            stop = start + math.prod(shape)
            part = vector[..., start:stop]
            values[name] = part.reshape((*vector.shape[:-1], *shape))
            start = stop
        return values


def in_a_vector(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns all numbers of some tensors as a float64 vector, scalars first."""
    # One operation, `tf.stack`, serves all scalars.
    tensors = [tf.cast(tensor, tf.float64) for tensor in tensors]
    scalars = [tensor for tensor in tensors if not tensor.shape.rank]
    others = [tf.reshape(tensor, [-1]) for tensor in tensors if tensor.shape.rank]
    stacked = [tf.stack(scalars)] if scalars else []
    parts = [*stacked, *others]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def is_finite(sums: Mapping[str, tf.Tensor], checks: tf.Tensor) -> tf.Tensor:
    """Returns whether the update of a step may be applied, a bool scalar.

    A metric may be infinite in a step that trains well, such as a relative error where
    a label is zero.

    Args:
      sums: Sums of the loss and metrics, by name; without a loss for an update of a
        step that another one follows.
      checks: Number for each gradient and tensor of layer state, float64 vector.
    """
    losses = [sums["loss"]] if "loss" in sums else []
    return tf.reduce_all(tf.math.is_finite(in_a_vector([*losses, checks])))


def step_results(
    metrics: Mapping[str, np.ndarray],
    *,
    applied_steps: int,
    stop: float,
    last_ended: float,
    details: Mapping[str, np.ndarray],
) -> StepResults:
    """Returns the results of one call of a loop.

    Args:
      metrics: Reported values of each step by name, [attempted, ...].
      applied_steps: Number of steps that changed the weights.
      stop: Time of the end of the call, in seconds.
      last_ended: Time of the end of the last step, in seconds.
      details: Details of the last step; empty if it was not observed.
    """
    # A step ends when the next one starts.
    ends = np.append(metrics[START], stop)
    is_last = np.arange(len(ends) - 1) == len(ends) - 2
    return StepResults(
        applied_steps=applied_steps,
        sums={
            name: values
            for name, values in metrics.items()
            if not name.startswith(INTERNAL)
        },
        staleness=metrics.get(STALENESS),
        dropped_gradients=metrics.get(DROPPED_GRADIENTS),
        stage_busy_seconds=_by_stage(metrics),
        pipeline_seconds=metrics.get(PIPELINE_SECONDS),
        attempted_steps=len(metrics[START]),
        first_not_finite=_last_or_nothing(metrics.get(NOT_FINITE)),
        agreed=_mean_of_last(metrics),
        step_seconds=np.diff(ends),
        input_seconds=metrics[WAIT],
        details=dict(details),
        phases=StepPhases(
            start=ends[:-1],
            input=metrics[WAIT],
            prefetch=is_last * (stop - last_ended),
            stop=ends[1:],
            computed=metrics.get(COMPUTED),
            reduced=metrics.get(REDUCED),
            worker_seconds=metrics.get(WORKER_SECONDS),
        ),
    )


def _by_stage(metrics: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns the compute time of each stage, [attempted, stages]; None without any."""
    num_stages = sum(name.startswith(STAGE_BUSY_SECONDS) for name in metrics)
    if not num_stages:
        return None
    names = [f"{STAGE_BUSY_SECONDS}{index}" for index in range(num_stages)]
    return np.stack([metrics[name] for name in names], axis=1)


def _last_or_nothing(positions: np.ndarray | None) -> int | None:
    """Returns the index in the last step, or None if all checks were finite."""
    # Only the last step can have an index: the loop ends with it.
    if positions is None or not len(positions) or positions[-1] == NOTHING:
        return None
    return int(positions[-1])


def _mean_of_last(metrics: Mapping[str, np.ndarray]) -> SyncedFlags:
    """Returns the mean over replicas in the last step, equal on every process."""
    replicas = metrics[_REPLICAS][-1:]
    if not len(replicas):
        return SyncedFlags()
    names = [field.name for field in dataclasses.fields(SyncedFlags)]
    return SyncedFlags(
        **{name: float(metrics[_AGREED + name][-1] / replicas[0]) for name in names}
    )


def join_results(
    parts: Sequence[StepResults], workers: Sequence[str], num_side_by_side: int
) -> StepResults:
    """Returns the joint results of several ranges of steps, computed in parallel.

    Args:
      parts: Results in the order of their steps; the last part was observed. A part
        that ended early, because a value was not finite, is moved to the end: a
        diverged run ends there.
      workers: Name of the worker that computed each part.
      num_side_by_side: Number of workers. The time between two updates is the duration
        of a step divided by this number.
    """
    # Before the sort, which may move another part to the end.
    details = parts[-1].details
    done = sorted(zip(parts, workers, strict=True), key=lambda d: _ended_early(d[0]))
    parts, workers = zip(*done, strict=True)
    last = parts[-1]
    return StepResults(
        applied_steps=sum(part.applied_steps for part in parts),
        sums={n: _concatenated([p.sums[n] for p in parts]) for n in last.sums},
        step_seconds=_concatenated([p.step_seconds for p in parts]) / num_side_by_side,
        input_seconds=_concatenated([p.input_seconds for p in parts])
        / num_side_by_side,
        details=details,
        agreed=last.agreed,
        attempted_steps=sum(part.attempted_steps for part in parts),
        staleness=_concatenated([part.staleness for part in parts]),
        workers=np.repeat(workers, [part.attempted_steps for part in parts]),
        first_not_finite=last.first_not_finite,
        phases=_joined_phases([part.phases for part in parts]),
    )


def _joined_phases(parts: Sequence[StepPhases | None]) -> StepPhases | None:
    """Returns the times of all parts; None if a part has lost its times."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return StepPhases(*map(_concatenated, zip(*known, strict=True)))


def _concatenated(arrays: Sequence[Any]) -> Any:
    """Returns the arrays of all parts, one behind the other; None if there are none."""
    return None if arrays[0] is None else np.concatenate(arrays)


def _ended_early(results: StepResults) -> bool:
    """Returns whether the last step was not applied, because a value was not finite."""
    return results.applied_steps < results.attempted_steps
