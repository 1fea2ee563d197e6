"""Every loss and every mean of Keras, on labels and predictions of each rank.

Keras is the judge. Where it raises, so does this program, in one line. Otherwise the
mean of the examples' values is Keras's figure, whether they are computed together or
apart. It may be refused only if Keras's figure of the batch is not the mean of Keras's
figures of its examples, for then no division among replicas can have it.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from tests.markers import further
from trainers.user_code import wrap_user_errors
from trainers.user_code.losses import objective_of
from trainers.user_code.probe import Probe

# Examples, words of each, and classes: no two alike, so that no axis is mistaken.
N, T, K = 7, 4, 3

# Rounding of sums of 84 numbers in single precision, in another order.
RTOL = 1e-5


def _drawn(*shape: int, seed: int = 1) -> np.ndarray:
    """Labels have the seed 1, and predictions others: equal ones would show nothing."""
    drawn = np.random.default_rng(seed).uniform(0.1, 0.9, shape)
    return drawn.astype(np.float32)


def _ids(most: int, *shape: int) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape) % most


PREDICTIONS = {
    "[n]": _drawn(N, seed=2),
    "[n, 1]": _drawn(N, 1, seed=2),
    "[n, k]": _drawn(N, K, seed=2),
    "[n, t, 1]": _drawn(N, T, 1, seed=2),
    "[n, t, k]": _drawn(N, T, K, seed=2),
}
LABELS = {
    "[n] float": _drawn(N),
    "[n] int": _ids(2, N),
    "[n, 1] float": _drawn(N, 1),
    "[n, 1] int": _ids(2, N, 1),
    "[n, k] float": _drawn(N, K),
    "[n, k] int": np.eye(K, dtype=np.int64)[_ids(K, N)],
    "[n, t] int": _ids(K, N, T),
    "[n, t] double": _drawn(N, T).astype(np.float64),
    "[n, t, 1] int": _ids(2, N, T, 1),
    "[n, t, k] float": _drawn(N, T, K),
}


def _classes(module: Any, base: type) -> list[type]:
    return sorted(
        (
            found
            for found in vars(module).values()
            if inspect.isclass(found) and issubclass(found, base) and found is not base
        ),
        key=lambda found: found.__name__,
    )


# Of Circle alone, which of no pair at all is 0 in both ways.
IS_OF_PAIRS = "'circle' leaves some values out of its mean"

LOSSES = _classes(keras.losses, keras.losses.Loss)
METRICS = _classes(keras.metrics, keras.metrics.MeanMetricWrapper)


def _made(kind: type) -> Any:
    needed = {"CategoricalGeneralizedCrossEntropy": {"q": 0.5}}
    return kind(**needed.get(kind.__name__, {}))


def _nothing(y_true: Any, y_pred: Any) -> Any:
    """Returns zeros as losses, for labels of any rank."""
    return tf.zeros(tf.shape(y_pred)[:1])


@functools.cache
def _model(shape: tuple[int, ...]) -> keras.Model:
    inputs = keras.Input(shape)
    return keras.Model(inputs, keras.layers.Identity()(inputs))


def _compiled(predictions: Any, **settings: Any) -> keras.Model:
    model = _model(tuple(predictions.shape[1:]))
    model.compile(optimizer=None, **settings)
    return model


def in_keras(labels: Any, predictions: Any, settings: dict[str, Any]) -> float:
    """Returns the metric as Keras computes it, or the loss without one."""
    model = _compiled(predictions, **settings)
    loss = model.compute_loss(None, labels, predictions)
    if "metrics" not in settings:
        return float(loss)
    figures = model.compute_metrics(None, labels, predictions)
    (name,) = figures.keys() - {"loss"}
    return float(figures[name])


def here(labels: Any, predictions: Any, settings: dict[str, Any]) -> np.ndarray:
    """Returns the metric or loss of the project, from two parts of the batch."""
    with wrap_user_errors("--model=some.module:model"):
        model = _compiled(predictions, **settings)
        examples = Probe(labels, predictions, is_masked=False)
        objective = objective_of(model, None, None, examples)
    parts = [
        objective.of_predictions(labels[rows], predictions[rows], N)
        for rows in (slice(0, 2), slice(2, N))
    ]
    (name,) = (parts[0].keys() - {"loss"}) or {"loss"}
    return np.concatenate([part[name] for part in parts])


def _outcome(compute: Callable[[], Any]) -> Any:
    """Returns the result of a call, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except Exception as error:
        return error


def _cases(
    kinds: list[type], shape: str, labels: Sequence[str]
) -> Iterator[tuple[str, Any, Any, type]]:
    predictions = tf.constant(PREDICTIONS[shape])
    for kind in kinds:
        for name in labels:
            case = f"{kind.__name__}, labels {name}, predictions {shape}"
            yield case, tf.constant(LABELS[name]), predictions, kind


def _fault(labels: Any, predictions: Any, settings: dict[str, Any]) -> str | None:
    """Returns a description of the difference; None if there is none."""
    found = _outcome(functools.partial(here, labels, predictions, settings))
    converted = labels
    if labels.dtype == tf.float64:
        # As the adapter of arrays does in `fit`.
        converted = tf.cast(labels, tf.float32)
    expected = _outcome(functools.partial(in_keras, converted, predictions, settings))
    if isinstance(expected, Exception):
        refused = isinstance(found, UsageError) and "\n" not in str(found)
        return None if refused else f"Keras raises, here {found!r}"
    if isinstance(found, Exception):
        alone = [
            in_keras(converted[i : i + 1], predictions[i : i + 1], settings)
            for i in range(N)
        ]
        is_mean = _close(np.mean(alone), expected)
        if isinstance(found, UsageError) and (not is_mean or IS_OF_PAIRS in str(found)):
            return None
        return f"{expected} in Keras, refused here: {found!r}"
    mean = np.mean(found)
    return None if _close(mean, expected) else f"{expected} in Keras, {mean} here"


def _close(found: Any, expected: Any) -> bool:
    return bool(np.isclose(found, expected, rtol=RTOL, atol=1e-7, equal_nan=True))


def _faults(
    kinds: list[type],
    shape: str,
    names: Sequence[str],
    settings_of: Callable[[Any], dict[str, Any]],
) -> list[str]:
    found = []
    for case, labels, predictions, kind in _cases(kinds, shape, names):
        fault = _fault(labels, predictions, settings_of(_made(kind)))
        if fault is not None:
            found.append(f"{case}: {fault}")
    return found


# Labels that a loss may take for those of one column: each rank and each type once.
OF_ONE_COLUMN = ("[n] int", "[n, 1] float")
SHAPES = [
    ("[n, 1]", OF_ONE_COLUMN),
    further("[n, 1]", [name for name in LABELS if name not in OF_ONE_COLUMN]),
    *(further(shape, [*LABELS]) for shape in PREDICTIONS if shape != "[n, 1]"),
]


# Keras's advice on labels of one column, which does not change the loss.
one_column = pytest.mark.filterwarnings(
    "ignore:In loss categorical_(focal_)?crossentropy:SyntaxWarning"
)


@one_column
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "labels"), SHAPES)
def test_losses(shape: str, labels: Sequence[str]) -> None:
    assert len(LOSSES) >= 21
    assert _faults(LOSSES, shape, labels, lambda loss: {"loss": loss}) == []


@one_column
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "labels"), SHAPES)
def test_metrics(shape: str, labels: Sequence[str]) -> None:
    assert len(METRICS) >= 21
    faults = _faults(
        METRICS, shape, labels, lambda metric: {"loss": _nothing, "metrics": [metric]}
    )
    assert faults == []
