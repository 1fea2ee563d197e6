"""Comparison of what some examples give with what each half of them gives."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies.common.private_apis.graphs import counted_alone
from strategies.common.private_apis.models import flat_layers
from strategies.common.types import Batch
from trainers.user_code.few_examples import rows_of
from trainers.user_code.independence import agree


def graph_of(run: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
    """Returns a function that runs in a graph, as in `fit`.

    A step may use what eager tensors do not have.
    """
    return tf.function(counted_alone(run), autograph=False)


def on_halves(
    run: Callable[[Batch], Any], few: Batch, is_divisible: bool = True
) -> list[Any]:
    """Returns results of a function for examples, each half of them, and all again.

    The halves show whether a result is a mean over examples, a sum, or neither; the
    repetition shows whether it is random. A single example, and examples that are not
    divisible, are their only half.
    """
    num_rows = _num_rows(few)
    halves = [range(num_rows)]
    if is_divisible and num_rows > 1:
        half = num_rows // 2
        halves = [range(half), range(half, 2 * half)]
    whole = range(sum(map(len, halves)))
    size = tf.constant(len(whole), tf.int64)
    return [
        run(_part(few, rows)._replace(global_size=size))
        for rows in (whole, *halves, whole)
    ]


def on_exchanged_halves(run: Callable[[Batch], Any], few: Batch) -> list[Any]:
    """Returns results for both halves A and B of some examples as AB, BA, AA and BB.

    If the examples of a batch do not depend on each other, the results for AB and BA
    are together those for AA and BB. Random numbers are the same for each of them,
    whether these belong to an example or to its place.
    """
    half = _num_rows(few) // 2
    a, b = range(half), range(half, 2 * half)
    drawn_for = _part(few, [*a, *b]).indices
    pairs = ((a, b), (b, a), (a, a), (b, b))
    return [run(_part(few, [*x, *y])._replace(indices=drawn_for)) for x, y in pairs]


def _num_rows(few: Batch) -> int:
    return tf.nest.flatten(few.features)[0].shape[0]


def twice(few: Batch) -> Batch:
    """Returns a batch of which each half has all examples."""
    return _part(few, [*range(int(few.num_rows))] * 2)


def _part(few: Batch, rows: Sequence[int]) -> Batch:
    size = tf.constant(len(rows), tf.int64)
    given = (few.features, few.labels, few.indices)
    features, labels, indices = rows_of(given, rows)
    return few._replace(
        features=features,
        labels=labels,
        indices=indices,
        global_size=size,
        num_rows=size,
    )


def number_of(values: tf.Tensor) -> tf.Tensor:
    """Returns a weighted sum: the plain sum of a gradient is often zero."""
    flat = tf.reshape(values, [-1])
    places = tf.cast(tf.range(tf.size(flat)), tf.float64)
    return tf.tensordot(flat, tf.cos(places), 1)


def are_sums(parts: np.ndarray, rounding: Any = 0.0) -> bool:
    """Returns whether numbers of all examples are the sum of each half's.

    Args:
      parts: Numbers of all examples and of each half, float64 [3, n].
      rounding: Error of each number in half precision, [n].
    """
    return agree(parts[0], np.sum(parts[1:], axis=0), rounding)


def are_means(parts: np.ndarray, rounding: Any = 0.0) -> bool:
    """Returns whether numbers of all examples are the mean of each half's."""
    return agree(parts[0], np.mean(parts[1:], axis=0), rounding)


def are_close_means(parts: np.ndarray, relative_rounding: float) -> bool:
    """Returns whether they are means with an error of 1e-4 at most.

    The norm of a gradient can be off by 1e-3 at first, and by 30 % later.
    """
    rounding = relative_rounding * np.abs(parts).max(axis=0)
    return agree(parts[0], np.mean(parts[1:], axis=0), rounding, relative=1e-4)


# Relative errors of gradients: 16 times the rounding error of one number.
_HALF_PRECISION = {"float16": 16 * 2**-11, "bfloat16": 16 * 2**-8}


def relative_rounding(model: keras.Model) -> float:
    """Returns the relative error of gradients by half precision; 0 without it."""
    kinds = {layer.compute_dtype for layer in flat_layers(model)}
    return max(_HALF_PRECISION.get(kind, 0.0) for kind in kinds)
