"""A model whose predictions depend on the batch is named before the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers, ops

from tests.trainers.user_code.own_step.few import few_examples
from trainers.user_code.state_remark import forward_remark


class Rated(keras.Model):
    """Ends with a function of two embeddings."""

    def __init__(self, combine: Callable[[Any, Any], Any]):
        super().__init__()
        self.users, self.films = layers.Dense(3), layers.Dense(3)
        self.dropout = layers.Dropout(0.5)
        self.combine = combine

    def call(self, inputs, training=False):
        users = self.dropout(self.users(inputs), training=training)
        return self.combine(users, self.films(inputs))


def of_each(users, films):
    return ops.sum(users * films, axis=1, keepdims=True)


def of_all(users, films):
    """Mixes examples, as keras.io/examples/structured_data/collaborative_filtering."""
    return of_each(users, films) + ops.tensordot(users, films, 2)


def functional(last: Callable[[Any], Any]) -> keras.Model:
    inputs = keras.Input((5,))
    return keras.Model(inputs, last(layers.Dense(3)(inputs)))


@pytest.mark.parametrize(
    ("build", "is_named"),
    [
        (lambda: Rated(of_each), False),
        (lambda: Rated(of_all), True),
        (lambda: functional(layers.Lambda(lambda x: ops.softmax(x, axis=0))), True),
        (lambda: functional(lambda x: x - ops.mean(x, axis=0)), True),
        (lambda: functional(lambda x: x - ops.mean(x, axis=1, keepdims=True)), False),
    ],
)
def test_predictions_that_depend_on_the_batch_are_named(
    build: Callable[[], keras.Model], is_named: bool
) -> None:
    model = build()
    few = few_examples()
    model(few.features)
    remark = forward_remark(model, few)
    assert (remark is not None) == is_named
    assert remark is None or "for its halves" in remark
