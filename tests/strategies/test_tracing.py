"""Tests of variables that are made while a function is traced."""

import contextlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from strategies.common.tracing import outside_of_traces


@pytest.mark.parametrize(
    ("scope", "num_traces"),
    [
        (outside_of_traces, 1),
        # TensorFlow, as it was when `outside_of_traces` was written.
        (tf.init_scope, 2),
    ],
    ids=["outside", "init_scope"],
)
def test_a_function_that_makes_a_variable_is_traced_once(
    scope: Callable[[], contextlib.AbstractContextManager[None]], num_traces: int
) -> None:
    made: list[tf.Variable] = []
    traces = []

    @tf.function
    def inner() -> tf.Tensor:
        traces.append(1)
        if not made:
            with scope():
                made.append(tf.Variable(1.0))
        return made[0].assign_add(1.0)

    outer = tf.function(lambda: inner() + 0.0)
    assert [float(outer()) for _ in range(2)] == [2.0, 3.0]
    assert len(traces) == num_traces
