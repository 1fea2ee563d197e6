"""Sums of losses and metrics of examples, compared with `fit` and `evaluate`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.objective import Summed, Weighted
from strategies.common.errors import UsageError
from strategies.common.private_apis.models import mask_of
from tests.markers import further
from tests.trainers.user_code import factories
from trainers.user_code.counting_metric import total_of
from trainers.user_code.losses import objective_of
from trainers.user_code.probe import Probe


def means(
    model: keras.Model, features: Any, labels: Any, **given: Any
) -> dict[str, float]:
    predictions = model(features, training=False)
    few_labels, few_predictions = tf.nest.map_structure(
        lambda v: tf.constant(v[:4]), (labels, predictions)
    )
    flat = tf.nest.flatten(predictions)
    is_masked = any(mask_of(one) is not None for one in flat)
    examples = Probe(few_labels, few_predictions, is_masked)
    objective = objective_of(model, given.get("loss"), given.get("metrics"), examples)
    values = objective.of_predictions(labels, predictions)
    sums = {
        name: value.total if isinstance(value, Summed) else tf.reduce_sum(value)
        for name, value in values.items()
    }
    return objective.results(
        {**{n: np.asarray(v) for n, v in sums.items()}, "examples": flat[0].shape[0]}
    )


def compiled(**settings: Any) -> keras.Model:
    model = factories.stacked()
    model.compile(**settings)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "mse", "metrics": ["mae", "cosine_similarity"]},
        {"loss": keras.losses.LogCosh()},
        {"loss": lambda true, predicted: tf.abs(predicted - true)},
        {"loss": "kl_divergence", "metrics": ["accuracy"]},
        {
            "loss": keras.losses.CategoricalCrossentropy(
                from_logits=True, label_smoothing=0.1
            ),
            "metrics": [keras.metrics.CategoricalAccuracy(name="right")],
        },
        {"loss": "mse", "loss_weights": 0.5},
    ],
    ids=["mse", "LogCosh", "lambda", "kl", "smoothed", "weighed"],
)
def test_of_one_output(settings: dict[str, Any]) -> None:
    features, labels = factories.arrays()
    one_hot = np.eye(3, dtype=np.float32)[labels]
    model = compiled(**settings)
    assert_as_evaluated(model, features, one_hot)


def test_of_ids_of_classes() -> None:
    assert_as_evaluated(factories.subclassed(), *factories.arrays())


def test_of_several_outputs_each_by_itself_and_weighed() -> None:
    found = assert_as_evaluated(factories.two_in_two_out(), *factories.several())
    assert found["loss"] == pytest.approx(
        0.3 * found["kind_loss"] + 2 * found["size_loss"], rel=1e-6
    )


def test_of_outputs_in_a_list() -> None:
    features, _ = factories.arrays()
    inputs = keras.Input([5])
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("low", "high")]
    model = keras.Model(inputs, outputs)
    model.compile(loss=["mse", "mae"], metrics=[["mae"], ["mse"]])
    targets = [features[:, :1], features[:, 1:2]]
    assert_as_evaluated(model, features, targets)


class Pair(keras.Model):
    """Has two outputs without names, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, inputs: Any) -> list[Any]:
        return [self.low(inputs), self.high(inputs)]


def test_of_outputs_that_are_named_after_one_loss() -> None:
    """Both losses have one name, by which Keras reports the last of them."""
    features, _ = factories.arrays()
    model = Pair()
    model.compile(loss=["mse", "mse"], loss_weights=[0.3, 2.0])
    assert_as_evaluated(model, features, [features[:, :1], features[:, 1:2]])


@pytest.mark.parametrize("packed", [lambda value: value, lambda value: [value]])
def test_of_one_output_whose_weights_are_in_a_list(packed: Any) -> None:
    features, _ = factories.arrays()
    labels, weights = [features[:, 1]], [np.abs(features[:, 2])]
    inputs = keras.Input([5])
    model = keras.Model(inputs, packed(keras.layers.Dense(1)(inputs)))
    model.compile(loss="mse", metrics=["mae"], weighted_metrics=["mse"])
    found = means(model, features, Weighted(labels, weights))
    expected = model.evaluate(
        features, labels, 60, sample_weight=weights, verbose=0, return_dict=True
    )
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def assert_as_evaluated(
    model: keras.Model, features: Any, labels: Any
) -> dict[str, float]:
    """Keras's own figures, to rounding of sums of 60 numbers in another order."""
    found = means(model, features, labels)
    # In one batch: of several, Keras takes the mean of means for each output's loss.
    expected = model.evaluate(
        features, labels, batch_size=60, verbose=0, return_dict=True
    )
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert len(expected) > 0
    return found


def test_names_of_flags_come_before_what_was_compiled() -> None:
    features, labels = factories.arrays()
    one_hot = np.eye(3, dtype=np.float32)[labels]
    model = compiled(loss="mse", loss_weights=0.5, metrics=["mae"])
    found = means(model, features, one_hot, loss="mean_absolute_error", metrics=["mse"])
    predictions = model(features)
    assert found == pytest.approx(
        {
            "loss": np.abs(predictions - one_hot).mean(),
            "mse": np.square(predictions - one_hot).mean(),
        },
        rel=1e-5,
    )


def masked() -> keras.Model:
    ids = keras.Input([4], dtype="int64")
    words = keras.layers.Embedding(9, 2, mask_zero=True)(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(words))
    model.compile(loss="mse")
    return model


class LastDoubled(keras.metrics.MeanAbsoluteError):
    """A mean of something else than its function's values."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_true, 2 * y_pred, sample_weight)


class Called(keras.losses.Loss):
    """Does everything by itself."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


class Centred(keras.losses.Loss):
    """Takes the mean of its batch for the label of each."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.reduce_mean(y_true, 0) - y_pred), axis=-1)


OF_IDS = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (factories.not_compiled, "--loss is missing"),
        (factories.mean_of_a_batch, "one number for a whole batch"),
        (lambda: compiled(loss={"other": "mse"}), "no loss is of an output"),
        (lambda: compiled(loss=Called()), "has a __call__ of its own"),
        (lambda: compiled(loss=Centred()), "another value beside other examples"),
        (lambda: compiled(loss=keras.losses.Dice()), "one number for a whole batch"),
        (
            lambda: compiled(loss=keras.losses.MeanSquaredError(reduction=None)),
            "has reduction=None, of which fit minimizes the sum over a batch",
        ),
        (lambda: compiled(loss=["mse", "mae"]), "one output and 2 losses"),
        (
            lambda: compiled(
                loss="mse", metrics=[keras.metrics.MeanSquaredError("loss")]
            ),
            "a metric is named 'loss'",
        ),
    ],
    ids=[
        *("no loss", "mean", "no output", "own call", "centred"),
        *("Dice", "reduction none", "two losses", "name"),
    ],
)
def test_what_has_no_value_of_each_example_is_refused(
    make: Callable[[], keras.Model], words: str
) -> None:
    features, labels = factories.arrays()
    with pytest.raises(UsageError, match=words):
        means(make(), features, np.eye(3, dtype=np.float32)[labels])


@pytest.mark.parametrize(
    "make",
    [
        factories.counting_metric,
        lambda: compiled(loss="mse", metrics=[LastDoubled()]),
        lambda: compiled(loss="mse", metrics=[keras.metrics.R2Score()]),
    ],
    ids=["AUC", "own update", "sums of squares"],
)
def test_metrics_that_count_are_computed_of_all_counts(
    make: Callable[[], keras.Model],
) -> None:
    features, labels = factories.arrays()
    assert_as_evaluated(make(), features, np.eye(3, dtype=np.float32)[labels])


def test_a_loss_divides_by_the_examples_that_it_does_not_leave_out() -> None:
    loss = OF_IDS(from_logits=True, ignore_class=2)
    assert_as_evaluated(compiled(loss=loss), *factories.arrays())


@pytest.mark.parametrize(
    ("labels", "weights", "words"),
    [
        ([2, 2, 1], [2], r"the shape \[n\].* \[n, 2\].*, such as \[n, 1\]"),
        ([2, 1], [2, 2], r"the shape \[n, 2\].* \[n\].*, such as \[n\]"),
    ],
)
def test_weights_of_another_axis_than_examples_are_refused(
    labels: list[int], weights: list[int], words: str
) -> None:
    """Keras multiplies them too where as many examples as values make them fit."""
    model = keras.Sequential([keras.Input(labels[1:]), keras.layers.Dense(1)])
    model.compile(loss="mse")
    given = Weighted(np.ones(labels), np.ones(weights))
    with pytest.raises(UsageError, match=words):
        means(model, np.ones(labels), given)


def test_weights_of_the_loss_of_vectors_are_refused() -> None:
    """Keras multiplies each by the mean of the batch, which is its value of them."""
    layers = [keras.layers.Dense(1), keras.layers.Reshape(())]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(loss="mse")
    features, _ = factories.arrays()
    labels = features[:, 0]
    assert_as_evaluated(model, features, labels)
    with pytest.raises(UsageError, match=r"'mse' of outputs \[n\].*: .*\[n, 1\]"):
        means(model, features, Weighted(labels, np.abs(labels)))


def test_a_loss_of_pairs_is_refused() -> None:
    with pytest.raises(UsageError, match="another value beside other examples"):
        means(compiled(loss=keras.losses.Circle()), *factories.arrays())


def words_of_all(y_true: Any, y_pred: Any) -> Any:
    """Returns the loss of each word, as losses of sequences are often written."""
    return keras.losses.sparse_categorical_crossentropy(
        tf.reshape(y_true, [-1]), tf.reshape(y_pred, [-1, 3]), from_logits=True
    )


def same_shape(y_true: Any, y_pred: Any) -> Any:
    """Returns Booleans: whether each prediction is right."""
    return tf.equal(tf.argmax(y_pred, axis=-1), tf.cast(y_true, tf.int64))


@pytest.mark.parametrize(
    ("settings", "labels_of"),
    [
        ({"loss": words_of_all}, lambda words: words),
        ({"loss": "crossentropy", "metrics": ["accuracy"]}, lambda words: words),
        ({"loss": ["mse"], "metrics": ["mae", "mae"]}, lambda words: np.eye(3)[words]),
        ({"loss": OF_IDS(reduction="sum")}, lambda words: words[..., np.newaxis]),
        (
            {
                "loss": OF_IDS(),
                "metrics": [same_shape],
                "weighted_metrics": ["accuracy"],
            },
            lambda words: words.astype(np.float64),
        ),
    ],
    ids=["flat", "named by shape", "in a list", "summed", "boolean"],
)
def test_of_words(settings: dict[str, Any], labels_of: Callable[[Any], Any]) -> None:
    """Outputs [n, t, k], of which `fit` takes the mean over all words."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((60, 4, 5)).astype(np.float32)
    words = rng.integers(0, 3, (60, 4))
    inputs = keras.Input([4, 5])
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    model.compile(**settings)
    assert_as_evaluated(model, features, labels_of(words))


@pytest.mark.parametrize(
    "loss",
    # test_as_fit.py has those of Keras.
    [factories.guide_loss, factories.column_loss, *map(further, ("mse", "huber"))],
)
@pytest.mark.parametrize("is_column", [False, True])
def test_of_labels_of_one_number(loss: Any, is_column: bool) -> None:
    features, labels = factories.numbers()
    model = factories.one_number(loss, metrics=["mae"])
    labels = labels[:, np.newaxis] if is_column else labels
    assert_as_evaluated(model, features, labels)


def test_a_sum_is_that_over_the_global_batch() -> None:
    """A replica with 2 of 8 examples returns values whose mean over 8 is the sum."""
    features, labels = factories.numbers()
    model = factories.summed()
    predictions = model(features)
    few = tf.constant(labels[:4]), predictions[:4]
    objective = objective_of(model, None, None, Probe(*few, is_masked=False))
    values = objective.of_predictions(labels[:2], predictions[:2], 8)["loss"]
    squares = np.square(labels[:2] - predictions[:2, 0])
    np.testing.assert_allclose(values, 8 * squares, rtol=1e-6)


def test_labels_of_another_output_are_refused() -> None:
    features, labels = factories.several()
    labels["length"] = labels.pop("size")
    with pytest.raises(
        UsageError, match="no labels of output 'size'; it has labels of"
    ):
        means(factories.two_in_two_out(), features, labels)


@pytest.mark.parametrize(
    ("loss", "are_named"),
    [(["mse"], True), (["mse"] * 3, True), (["mse"] * 3, False)],
)
def test_a_list_of_too_few_or_too_many_losses_is_refused(
    loss: list[str], are_named: bool
) -> None:
    """Outputs in a list may have fewer losses, as in Keras, from the first one on."""
    features = keras.Input([3])
    outputs: Any = [keras.layers.Dense(1, name=name)(features) for name in "ab"]
    outputs = dict(zip("ab", outputs, strict=True)) if are_named else outputs
    model = keras.Model(features, outputs)
    model.compile(loss=loss)
    rows, column = np.ones([6, 3], np.float32), np.ones([6, 1], np.float32)
    labels = {"a": column, "b": column} if are_named else [column, column]
    with pytest.raises(UsageError, match=f"2 outputs, and a list of {len(loss)} l"):
        means(model, rows, labels)


def test_a_loss_divides_by_the_words_that_have_no_mask() -> None:
    ids = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4]] * 2)
    assert_as_evaluated(masked(), ids, np.ones([6, 4, 1], np.float32))


def test_a_count_of_batches_is_a_whole_number() -> None:
    """Six replicas with 8 of 48 examples count a sixth of each batch."""
    # Not `sum`, which corrects its rounding since Python 3.12.
    parts = float(np.cumsum([8 / 48] * 60)[-1])
    assert parts < 10
    variable = keras.Variable(0, dtype="int32")
    assert total_of(np.zeros([], np.int32), parts, variable) == 10
