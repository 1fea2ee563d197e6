"""A model whose predictions depend on the batch is named before the run."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers, ops

from tests.trainers.user_code.own_step.few import few_examples
from trainers.user_code import PerBatchError
from trainers.user_code.state_remark import forward_remark


@pytest.fixture(autouse=True)
def weights() -> None:
    """Chooses the same weights each time.

    The square of a mean may be small enough to be rounding.
    """
    keras.utils.set_random_seed(7)


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


def functional(last: Callable[[Any], Any], dtype: str | None = None) -> keras.Model:
    inputs = keras.Input((5,))
    return keras.Model(inputs, last(layers.Dense(3, dtype=dtype)(inputs)))


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


@pytest.mark.parametrize(
    "last",
    [
        lambda x: ops.matmul(x, ops.transpose(x)),
        lambda x: ops.transpose(x),
        lambda x: ops.mean(x),
    ],
    ids=["pairs", "another first axis", "number"],
)
def test_outputs_that_are_no_rows_of_examples_are_of_the_batch(
    last: Callable[[Any], Any],
) -> None:
    with pytest.raises(PerBatchError, match=r"is \[.*\] for a batch and \["):
        forward_remark(functional(last), few_examples())


class Penalty(layers.Layer):
    """Adds a loss that a function computes of its inputs."""

    def __init__(self, of: Callable[[Any], Any], dtype: str | None = None):
        super().__init__(dtype=dtype)
        self.of = of

    def call(self, inputs):
        self.add_loss(0.01 * self.of(inputs))
        return inputs


@pytest.mark.parametrize(
    ("of", "is_named"),
    [
        (lambda x: ops.mean(x**2), False),
        (lambda x: ops.sum(x**2), True),
        (lambda x: ops.sum(x**2, axis=1), True),
        (lambda x: ops.mean(x) ** 2, True),
        (
            lambda x: ops.mean(keras.random.normal(ops.shape(x), dtype=x.dtype) * x),
            False,
        ),
    ],
    ids=["mean", "sum", "of each", "square of a mean", "random"],
)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_added_losses_that_are_no_mean_of_examples_are_named(
    of: Callable[[Any], Any], is_named: bool, dtype: str
) -> None:
    few = few_examples()
    remark = forward_remark(functional(Penalty(of, dtype), dtype), few)
    assert (remark is not None) == is_named
    assert remark is None or "add_loss" in remark


@pytest.mark.parametrize(
    ("of", "is_named"),
    [(lambda x: ops.mean(x**2), False), (lambda x: ops.sum(x**2), True)],
    ids=["mean", "sum"],
)
def test_added_sums_are_named_behind_a_normalization(
    of: Callable[[Any], Any], is_named: bool
) -> None:
    penalty, normalization = Penalty(of), layers.BatchNormalization()
    model = functional(lambda x: penalty(normalization(x * 100 + 1000)))
    remark = forward_remark(model, few_examples())
    assert (remark is not None) == is_named
    assert remark is None or "add_loss" in remark


class Tracked(layers.Layer):
    """Keeps a moving average of what a function computes of its inputs."""

    def __init__(self, of: Callable[[Any], Any], dtype: str):
        super().__init__(dtype=dtype)
        self.of = of
        self.average = self.add_weight(
            (3,), "zeros", dtype="float32", trainable=False, autocast=False
        )

    def call(self, inputs):
        new = ops.cast(self.of(inputs), "float32")
        self.average.assign(0.9 * self.average + 0.1 * new)
        return inputs


@pytest.mark.parametrize(
    ("of", "is_named"),
    [(lambda x: ops.mean(x, axis=0), False), (lambda x: ops.sum(x, axis=0), True)],
    ids=["mean", "sum"],
)
def test_states_that_are_no_means_are_named_in_half_precision(
    of: Callable[[Any], Any], is_named: bool
) -> None:
    # Rounding decides, so that weights are drawn several times.
    for seed in range(4):
        keras.utils.set_random_seed(seed)
        model = functional(Tracked(of, "mixed_bfloat16"), "mixed_bfloat16")
        remark = forward_remark(model, few_examples())
        assert (remark is not None) == is_named
        assert remark is None or "the state" in remark
