"""A few examples of the data, for a look at the user's model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.objective import labels_of
from strategies.common.types import Batch
from trainers.inputs.sources import Source, spread_examples

# Examples that show whether a step takes the mean or the sum of a loss: two alone may
# both be without a gradient, such as behind the margin of a triplet loss.
EXAMPLES_OF_A_STEP = 16
# Sorted data begin with one class, and of ten classes two of 16 examples differ.
_EXAMPLES_TO_CHOOSE = 16


def few_examples(source: Source, most: int = 2) -> Batch:
    """Reads a batch of at most `most` examples, as a step gets them.

    Labels differ, if there are different ones among a few: a loss of pairs is zero
    where all have one label, although it depends on the other examples.
    """
    features, labels = spread_examples(source, max(most, _EXAMPLES_TO_CHOOSE))
    num_rows = tf.nest.flatten(features)[0].shape[0]
    rows = _different_first(labels_of(labels), num_rows)[:most]
    features, labels = rows_of((features, labels), rows)
    count = len(rows)
    indices = tf.range(count, dtype=tf.int64)
    size = tf.constant(count, tf.int64)
    return Batch(
        step=tf.zeros([], tf.int64),
        replica=tf.zeros([], tf.int64),
        global_size=size,
        num_rows=size,
        indices=indices,
        features=features,
        labels=labels,
    )


def rows_of(values: Any, rows: Sequence[int]) -> Any:
    """Returns some rows of each tensor [n, ...] of a structure; None for None."""
    if values is None:
        return None
    return tf.nest.map_structure(lambda value: tf.gather(value, list(rows)), values)


def shapes_in_words(values: Any) -> str:
    """Returns the shapes of labels or outputs, such as `[n] and [n, 3]`."""
    return " and ".join(
        "[" + ", ".join(["n", *map(str, value.shape[1:])]) + "]"
        for value in tf.nest.flatten(values)
    )


def _different_first(labels: Any, num_rows: int) -> list[int]:
    """Returns all rows; first those whose labels no row before them has."""
    arrays = [np.asarray(part) for part in tf.nest.flatten(labels)]
    # TensorFlow's strings are objects.
    arrays = [a.astype(bytes) if a.dtype == object else a for a in arrays]
    first: dict[tuple[bytes, ...], int] = {}
    for row in range(num_rows):
        first.setdefault(tuple(array[row].tobytes() for array in arrays), row)
    others = [row for row in range(num_rows) if row not in first.values()]
    return [*first.values(), *others]
