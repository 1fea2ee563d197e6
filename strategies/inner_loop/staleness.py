"""Staleness of updates from weights that other workers change meanwhile.

A step reads the number of applied updates before it reads the weights, and increases
the number after its update is complete. The staleness of the gradient is the number of
updates that others have added in between. TensorFlow adds atomically, but reads the sum
afterwards. Another update that is counted at that moment is included, so that a
staleness may be one too high, and never too low.
"""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from strategies.common.private_apis.graphs import run_after


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
