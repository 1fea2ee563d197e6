"""Staleness of updates from weights that other workers change meanwhile.

A step reads the number of applied updates before it reads the weights, and increases
the number after its update is complete. The staleness of the gradient is the number of
updates that others have added in between. TensorFlow adds atomically, but reads the sum
afterwards. Another update that is counted at that moment is included, so that a
staleness may be one too high, and never too low.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from strategies.common.private_apis.graphs import run_after
from strategies.common.types import StepPhases, StepResults


def changes_of(apply: Callable[[], None]) -> tf.Operation:
    """Returns an operation that is done when a function has changed its variables.

    The function is traced into the present graph.
    """
    # The end of a `tf.function` would show the same, but on the caller's device. For
    # variables and a count on one server this costs a message there and a message back.
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    apply()
    made = graph.get_operations()[before:]
    changes = (op for op in made if _takes_variable(op) and op.type not in _READS)
    return tf.group(*changes)


@contextlib.contextmanager
def reads_after(operation: tf.Operation) -> Iterator[None]:
    """Makes reads of variables inside the block wait for an operation of this graph.

    `tf.control_dependencies` would make all other operations wait, too, even those on
    other tasks.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    for read in graph.get_operations()[before:]:
        if _takes_variable(read):
            run_after(read, operation)


def _takes_variable(operation: tf.Operation) -> bool:
    return any(tensor.dtype == tf.resource for tensor in operation.inputs)


_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def joined(
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
        sums={n: np.concatenate([p.sums[n] for p in parts]) for n in last.sums},
        step_seconds=np.concatenate([p.step_seconds for p in parts]) / num_side_by_side,
        input_seconds=np.concatenate([p.input_seconds for p in parts])
        / num_side_by_side,
        details=details,
        agreed=last.agreed,
        attempted_steps=sum(part.attempted_steps for part in parts),
        staleness=None
        if last.staleness is None
        else np.concatenate([p.staleness for p in parts]),
        workers=np.repeat(workers, [part.attempted_steps for part in parts]),
        first_not_finite=last.first_not_finite,
        phases=_joined_phases([part.phases for part in parts]),
    )


def _joined_phases(parts: Sequence[StepPhases | None]) -> StepPhases | None:
    """Returns the times of all parts; None if a part has lost its times."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return StepPhases(
        *(
            None if values[0] is None else np.concatenate(values)
            for values in zip(*known, strict=True)
        )
    )


def _ended_early(results: StepResults) -> bool:
    """Returns whether the last step was not applied, because a value was not finite."""
    return results.applied_steps < results.attempted_steps
