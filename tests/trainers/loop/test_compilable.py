"""Parts of a user's model that keep `--jit_compile=auto` from compiling the loop."""

from collections.abc import Callable
from typing import Any

import keras
import pytest

from models.objective import AsCompiled
from trainers.loop.compilable import obstacles_of_model, obstacles_of_objective


class OwnLayer(keras.layers.Dense):
    """A subclass may override anything."""


class OwnDropout(keras.layers.Dropout):
    """One of rate 0 may compute something nevertheless."""


class OwnModel(keras.Model):
    """A model whose computation is Python code."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


class OwnRegularizer(keras.regularizers.Regularizer):
    """Adds nothing."""

    def __call__(self, values: Any) -> float:
        return 0.0


def own(values: Any, *rest: Any) -> Any:
    return keras.ops.mean(values) if rest else values


def stack(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input([4]), *layers])


def of_operation(compute: Callable[[Any], Any]) -> keras.Model:
    inputs = keras.Input([4])
    return keras.Model(inputs, compute(inputs))


def embedding(num_rows: int) -> keras.Model:
    return stack(keras.layers.Embedding(num_rows, 64), keras.layers.Flatten())


def attention() -> keras.Model:
    inputs = keras.Input([4, 8])
    attended = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    return keras.Model(inputs, keras.layers.Dense(2, activation="gelu")(attended))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: stack(OwnLayer(2)), "(OwnLayer) is not dense"),
        (lambda: stack(keras.layers.Dense(2, activation=own)), "own: activation"),
        (
            lambda: stack(keras.layers.Dense(2, kernel_regularizer=OwnRegularizer())),
            "own: kernel_regularizer",
        ),
        (lambda: stack(OwnDropout(0.0)), "(OwnDropout) is not dense"),
        (lambda: stack(keras.layers.Dropout(0.5)), "(Dropout) is not dense"),
        (lambda: of_operation(keras.ops.sort), "(Sort) is not dense"),
        (lambda: of_operation(lambda x: stack(OwnLayer(2))(x)), "(OwnLayer)"),
        (OwnModel, "OwnModel"),
        (lambda: embedding(4097), "embeddings of 1.0 MiB"),
    ],
)
def test_what_is_not_known_is_an_obstacle(
    build: Callable[[], keras.Model], words: str
) -> None:
    found = list(obstacles_of_model(build()))
    assert len(found) == 1, found
    assert words in found[0]


@pytest.mark.parametrize(
    "build",
    [
        lambda: stack(keras.layers.Dense(2, "relu", kernel_regularizer="l2")),
        lambda: of_operation(lambda x: keras.ops.tanh(x) * 2 + 1),
        lambda: embedding(4096),
        attention,
    ],
)
def test_layers_of_keras_are_none(build: Callable[[], keras.Model]) -> None:
    assert not list(obstacles_of_model(build()))


class Compiled:
    """An objective that says nothing but what it was compiled from."""

    def __init__(self, loss: Any, metrics: Any = None):
        self.compiled = AsCompiled(loss=loss, metrics=metrics) if loss else None


@pytest.mark.parametrize(
    ("loss", "metrics", "words"),
    [
        (None, None, "computes its own loss"),
        (own, None, "loss 'own' has code of its own"),
        (keras.losses.MeanSquaredError(), [own], "metric 'own' has code"),
        ({"a": "mse", "b": own}, None, "loss 'own'"),
        ("mse", [keras.metrics.MeanMetricWrapper(own, "m")], "metric 'm' has code"),
        ("mse", ["accuracy", keras.metrics.AUC(name="auc")], "'auc' keeps counts"),
    ],
)
def test_losses_and_metrics_of_the_user_are_obstacles(
    loss: Any, metrics: Any, words: str
) -> None:
    found = list(obstacles_of_objective(Compiled(loss, metrics)))  # type: ignore[arg-type]
    assert len(found) == 1, found
    assert words in found[0]


def test_losses_and_metrics_of_keras_are_none() -> None:
    compiled = Compiled(
        [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
        [["accuracy"], [keras.metrics.MeanAbsoluteError(), None]],
    )
    assert not list(obstacles_of_objective(compiled))  # type: ignore[arg-type]
