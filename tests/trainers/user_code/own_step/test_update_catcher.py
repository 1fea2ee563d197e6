"""Optimizers as a step finds them after one of its updates has been caught."""

import keras
import pytest
import tensorflow as tf

from strategies.common.private_apis.models import trainable_parts
from strategies.common.private_apis.optimizers import counter_of
from tests.trainers.user_code.own_step.few import few_examples
from trainers.user_code.own_step.model_step import ModelStep
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


class Described(keras.Model):
    """Trains itself on each caption of a picture, and handles any error."""

    num_computed = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.add_weight(name="weight", initializer="ones")

    def train_step(self, data):
        try:
            for _ in range(3):
                self.num_computed += 1
                self.optimizer.apply([self.weight * data[0]], [self.weight])
        except Exception:
            return {"loss": 0.0}
        return {"loss": 1.0}


@pytest.mark.parametrize("num_updates", [1, 2, 3, None])
def test_a_step_is_left_after_the_updates_that_are_needed(
    num_updates: int | None,
) -> None:
    """An earlier pass of a step with many updates was traced to its end."""
    model = Described()
    model.compile("sgd")
    model.optimizer.build(model.trainable_variables)
    flags = trainable_parts(model)
    step = ModelStep(model=model, name="train_step", metrics=[], trainable=flags)
    scope, logs = step.run(few_examples(), [], num_updates=num_updates)
    assert model.num_computed == len(scope.updates) == (num_updates or 3)
    assert logs == ({} if num_updates else {"loss": 1.0})
