"""Optimizers as a step finds them after one of its updates has been caught."""

import keras
import pytest
import tensorflow as tf

from strategies.common.private_apis.optimizers import counter_of
from trainers.user_code.own_step.update_catcher import UpdateCatcher


@pytest.mark.parametrize("num_former", [0, 1, 2])
def test_the_rate_of_an_optimizer_is_that_after_its_update(num_former: int) -> None:
    weight = keras.Variable(1.0)
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.1])
    optimizer = keras.optimizers.SGD(rates)
    optimizer.build([weight])
    # Applied before this pass of the step, and counted.
    counter = counter_of(optimizer)
    former = [
        {id(counter): tf.constant(count, tf.int64)} for count in range(num_former)
    ]
    counter.assign(num_former)
    read = []
    with UpdateCatcher([], former=former):
        read.append(optimizer.learning_rate)
        for _ in range(2):
            optimizer.apply([tf.constant(1.0)], [weight])
            read.append(optimizer.learning_rate)
    assert [float(rate) for rate in read] == pytest.approx([1.0, 0.5, 0.1])
    assert optimizer.iterations == num_former
