"""Updates from weights that others may have changed meanwhile: how stale they are.

The number of applied updates is read before the weights are, and added to after all
that an update changes is changed. What others have added in between is the staleness
of the gradient. TensorFlow adds atomically, but reads what came of it afterwards: an
update that is counted in that moment is taken along, so that a figure may be one too
high, and never too low.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from strategies.common.private_apis import run_after
from strategies.common.types import Batch, Shares, StepResults, Update

# What a step reports besides its sums.
REPORTED = ("staleness",)


def read_then_compute(
    update: Update, compute: Callable[[Batch], Shares], batch: Batch
) -> tuple[Shares, tf.Tensor]:
    """Shares of a batch, and the version of the weights they are of.

    Args:
      update: tells how many updates were applied.
      compute: reads the weights.
      batch: what it computes on.
    """
    version = update.applied_updates()
    # Whatever is read for the step is read after the version it is said to be.
    with tf.control_dependencies([version]):
        return compute(tf.nest.map_structure(tf.identity, batch)), version


def apply_then_count(
    update: Update,
    apply: Callable[[], None],
    version: tf.Tensor,
) -> Mapping[str, tf.Tensor]:
    """Changes the weights, counts the update, and reports how stale it was.

    Args:
      update: counts, atomically.
      apply: changes the weights.
      version: of the weights that it goes back to.
    """
    # An update is counted when all that it changes is changed: a count that came first
    # could be of an update that got lost.
    with tf.control_dependencies([changes_of(apply)]):
        count = update.count()
    return {"staleness": count - 1 - version}


def changes_of(apply: Callable[[], None]) -> tf.Operation:
    """Done when all is changed that a function changes, in the graph being traced.

    The end of a `tf.function` would say the same, but on the device of the caller: of
    what is changed and counted on one server, that is a message there and another back.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    apply()
    made = graph.get_operations()[before:]
    return tf.group(*(operation for operation in made if _changes(operation)))


@contextlib.contextmanager
def reads_after(operation: tf.Operation) -> Iterator[None]:
    """Variables that are read in the block, in this graph, are read after an operation.

    `tf.control_dependencies` would make all else wait as well, which other tasks do.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    for read in graph.get_operations()[before:]:
        if _takes_variable(read):
            run_after(read, operation)


def _changes(operation: tf.Operation) -> bool:
    return _takes_variable(operation) and operation.type not in _READS


def _takes_variable(operation: tf.Operation) -> bool:
    return any(tensor.dtype == tf.resource for tensor in operation.inputs)


_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def joined(
    parts: Sequence[StepResults], workers: Sequence[str], num_side_by_side: int
) -> StepResults:
    """Stretches of steps as one, which workers have computed side by side.

    Args:
      parts: in the order of their steps, the one that was observed last. One that
        ended early, because something was not finite, is taken as the last: that is
        where a diverged run ends.
      workers: who computed each.
      num_side_by_side: how many workers there are: an update comes that much more
        often than each of them takes for one.
    """
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
    )


def _ended_early(results: StepResults) -> bool:
    """Whether its last step was not applied, because something was not finite."""
    return results.applied_steps < results.attempted_steps
