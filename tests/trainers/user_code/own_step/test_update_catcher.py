"""Optimizers as a step finds them after one of its updates has been caught."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from trainers.user_code.own_step.update_catcher import UpdateCatcher


@pytest.mark.parametrize(
    ("former", "found"),
    [
        ([], [1.0, 0.5, 0.1]),
        # Both have been applied before this pass of the step, and counted.
        ([{}, {}], [1.0, 1.0, 1.0]),
    ],
)
def test_the_rate_of_an_optimizer_is_that_after_its_update(
    former: list[Any], found: list[float]
) -> None:
    weight = keras.Variable(1.0)
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.1])
    optimizer = keras.optimizers.SGD(rates)
    optimizer.build([weight])
    read = []
    with UpdateCatcher([], former=former):
        read.append(optimizer.learning_rate)
        for _ in range(2):
            optimizer.apply([tf.constant(1.0)], [weight])
            read.append(optimizer.learning_rate)
    assert [float(rate) for rate in read] == pytest.approx(found)
    assert optimizer.iterations == 0
