"""Results of steps, packed into one vector for each step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.common.types import StepPhases, StepResults, SyncedFlags

# Begins the name of each figure that is no loss or metric and travels with their sums.
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


def proposal(local_flags: tf.Tensor) -> dict[str, tf.Tensor]:
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
    figures: Mapping[str, np.ndarray],
    *,
    applied_steps: int,
    stop: float,
    last_ended: float,
    details: Mapping[str, np.ndarray],
) -> StepResults:
    """Returns the results of one call of a loop.

    Args:
      figures: Reported values of each step by name, [attempted, ...].
      applied_steps: Number of steps that changed the weights.
      stop: Time of the end of the call, in seconds.
      last_ended: Time of the end of the last step, in seconds.
      details: Details of the last step; empty if it was not observed.
    """
    # A step ends when the next one starts.
    ends = np.append(figures[START], stop)
    is_last = np.arange(len(ends) - 1) == len(ends) - 2
    return StepResults(
        applied_steps=applied_steps,
        sums={
            name: values
            for name, values in figures.items()
            if not name.startswith(INTERNAL)
        },
        staleness=figures.get(STALENESS),
        dropped_gradients=figures.get(DROPPED_GRADIENTS),
        stage_busy_seconds=_by_stage(figures),
        pipeline_seconds=figures.get(PIPELINE_SECONDS),
        attempted_steps=len(figures[START]),
        first_not_finite=_last_or_nothing(figures.get(NOT_FINITE)),
        agreed=_mean_of_last(figures),
        step_seconds=np.diff(ends),
        input_seconds=figures[WAIT],
        details=dict(details),
        phases=StepPhases(
            start=ends[:-1],
            input=figures[WAIT],
            prefetch=is_last * (stop - last_ended),
            stop=ends[1:],
            computed=figures.get(COMPUTED),
            reduced=figures.get(REDUCED),
            worker_seconds=figures.get(WORKER_SECONDS),
        ),
    )


def _by_stage(figures: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns the compute time of each stage, [attempted, stages]; None without any."""
    num_stages = sum(name.startswith(STAGE_BUSY_SECONDS) for name in figures)
    if not num_stages:
        return None
    names = [f"{STAGE_BUSY_SECONDS}{index}" for index in range(num_stages)]
    return np.stack([figures[name] for name in names], axis=1)


def _last_or_nothing(positions: np.ndarray | None) -> int | None:
    """Returns the index in the last step, or None if all checks were finite."""
    # Only the last step can have an index: the loop ends with it.
    if positions is None or not len(positions) or positions[-1] == NOTHING:
        return None
    return int(positions[-1])


def _mean_of_last(figures: Mapping[str, np.ndarray]) -> SyncedFlags:
    """Returns the mean over replicas in the last step, equal on every process."""
    replicas = figures[_REPLICAS][-1:]
    if not len(replicas):
        return SyncedFlags()
    names = [field.name for field in dataclasses.fields(SyncedFlags)]
    return SyncedFlags(
        **{name: float(figures[_AGREED + name][-1] / replicas[0]) for name in names}
    )
