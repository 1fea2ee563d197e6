"""Adam in one pass is Keras's Adam."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.model.optimizers.adam import Adam, AdamW

# Of 20 updates, each a few roundings. In double precision Keras's own rounds its betas
# to single, and differs by 4e-7 from the formula, which ours is compared with there.
TOLERANCE = 2e-6
TOLERANCE_OF_DOUBLE = 1e-14
SETTINGS: dict[str, Any] = {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.99}


def trained(
    make: Callable[..., keras.optimizers.Optimizer],
    dtype: str,
    scope: Any,
    gradients: list[np.ndarray],
) -> list[np.ndarray]:
    """Returns a variable after updates by gradients, and the optimizer's variables."""
    with scope.scope():
        variable = keras.Variable(np.linspace(-1, 1, 12).reshape(4, 3), dtype=dtype)
        optimizer = make(**SETTINGS)
        optimizer.build([variable])
    # A replica's gradient counts as it is, as in
    # strategies/common/private_apis/optimizers.py.
    optimizer._all_reduce_sum_gradients = list

    @tf.function
    def step(gradient: tf.Tensor) -> None:
        scope.run(lambda: optimizer.apply([gradient], [variable]))

    for gradient in gradients:
        step(tf.constant(gradient, dtype))
    return [v.numpy() for v in (variable, *optimizer.variables)]


def gradients() -> list[np.ndarray]:
    return list(np.random.default_rng(0).standard_normal((20, 4, 3)))


def by_formula(weight_decay: float) -> list[np.ndarray]:
    """Weights and both moments, in double precision."""
    rate = float(np.float32(SETTINGS["learning_rate"]))
    beta_1, beta_2 = SETTINGS["beta_1"], SETTINGS["beta_2"]
    weights = np.linspace(-1, 1, 12).reshape(4, 3)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients(), start=1):
        weights = weights - weights * weight_decay * rate
        first = first + (gradient - first) * (1 - beta_1)
        second = second + (gradient**2 - second) * (1 - beta_2)
        alpha = rate * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        weights = weights - alpha * first / (np.sqrt(second) + 1e-7)
    return [weights, first, second]


@pytest.mark.parametrize(
    ("ours", "weight_decay"),
    [(Adam, 0.0), (functools.partial(AdamW, weight_decay=0.25), 0.25)],
    ids=["adam", "adamw"],
)
@pytest.mark.parametrize("num_devices", [1, 2])
def test_it_is_the_formula(ours: Any, weight_decay: float, num_devices: int) -> None:
    found = trained(ours, "float64", on_devices(num_devices), gradients())
    expected = by_formula(weight_decay)
    # Beside these it has a counter and a rate.
    for got, want in zip((found[0], *found[3:]), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE_OF_DOUBLE)


def test_rows_of_a_table_are_the_formula_too() -> None:
    """Keras's update of a sparse gradient rounds the betas to single precision."""
    places = tf.constant([2, 0, 3, 1])

    class OfRows(Adam):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            values = tf.gather(grads[0], places)
            rows = tf.IndexedSlices(values, places, tf.constant([4, 3]))
            super().apply([rows], trainable_variables)

    found = trained(OfRows, "float64", on_devices(1), gradients())
    for got, want in zip((found[0], *found[3:]), by_formula(0.0), strict=True):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE_OF_DOUBLE)


def on_devices(num_devices: int) -> Any:
    if num_devices == 1:
        return tf.distribute.get_strategy()
    devices = [f"/device:CPU:{index}" for index in range(num_devices)]
    return tf.distribute.MirroredStrategy(devices)


@pytest.mark.parametrize(
    ("ours", "keras_own"),
    [(Adam, keras.optimizers.Adam), (AdamW, keras.optimizers.AdamW)],
)
@pytest.mark.parametrize("num_devices", [1, 2])
def test_it_is_that_of_keras(ours: Any, keras_own: Any, num_devices: int) -> None:
    scope = on_devices(num_devices)
    found = trained(ours, "float32", scope, gradients())
    expected = trained(keras_own, "float32", scope, gradients())
    assert len(found) == len(expected) == 5
    for got, want in zip(found, expected, strict=True):
        assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


def test_all_copies_of_a_mirrored_variable_are_changed() -> None:
    scope = tf.distribute.MirroredStrategy(["/device:CPU:0", "/device:CPU:1"])
    with scope.scope():
        variable = keras.Variable(np.ones([3]), dtype="float64")
        optimizer = Adam(**SETTINGS)
        optimizer.build([variable])
    optimizer._all_reduce_sum_gradients = list
    gradient = tf.constant([1.0, -2.0, 3.0], tf.float64)
    scope.run(lambda: optimizer.apply([gradient], [variable]))
    for mirrored in (variable.value, *(v.value for v in optimizer.variables[2:])):
        first, second = (copy.numpy() for copy in mirrored.values)
        np.testing.assert_array_equal(first, second)
        assert not np.allclose(first, 1)
        assert not np.allclose(first, 0)


def test_rows_of_a_table_move_as_with_keras() -> None:
    rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2]), tf.constant([4, 3]))
    values = []
    for make in (Adam, keras.optimizers.Adam):
        variable = keras.Variable(np.zeros([4, 3]), dtype="float32")
        optimizer = make(**SETTINGS)
        optimizer.build([variable])
        optimizer.apply([rows], [variable])
        values.append(variable.numpy())
    np.testing.assert_allclose(*values, rtol=TOLERANCE)


def test_several_variables_in_several_updates_of_a_graph_are_the_formula() -> None:
    """All variables of a device share the powers, and the next update has its own."""
    variables = [
        keras.Variable(np.linspace(-1, 1, 12).reshape(4, 3), dtype="float64")
        for _ in range(3)
    ]
    optimizer = Adam(**SETTINGS)
    optimizer.build(variables)

    @tf.function
    def all_updates() -> None:
        for gradient in gradients():
            optimizer.apply([tf.constant(gradient)] * 3, variables)

    all_updates()
    graph = all_updates.get_concrete_function().graph
    operations = [operation.type for operation in graph.get_operations()]
    assert operations.count("ResourceApplyAdam") == 3 * 20
    assert operations.count("Pow") == 2 * 20
    expected, *_ = by_formula(0.0)
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), expected, rtol=TOLERANCE_OF_DOUBLE)
