"""Models and data of a user, named tests.trainers.user_code.factories:NAME."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.base import Examples

_NUM_EXAMPLES = 60


class Nested(keras.Model):
    """A subclassed model, whose variables are made when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.logits = keras.layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.logits(self.hidden(inputs))


class OwnTraining(Nested):
    """Has `fit` do something that nobody else knows of."""

    def train_step(self, data: Any) -> Any:
        return {}


def arrays() -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(0).standard_normal((_NUM_EXAMPLES, 5))
    return features.astype(np.float32), features[:, :3].argmax(1)


def train_and_eval() -> tuple[Any, Any]:
    features, labels = arrays()
    return (features[:40], labels[:40]), (features[40:], labels[40:])


def datasets() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Examples, and batches of which the last is smaller."""
    (train, evaluation) = train_and_eval()
    return (
        tf.data.Dataset.from_tensor_slices(train),
        tf.data.Dataset.from_tensor_slices(evaluation).batch(8),
    )


def batches_of_one_size() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(10, drop_remainder=True)


def sequences() -> tf.data.Dataset:
    """Examples of an unknown number of tokens, each with a label."""
    features = np.ones((_NUM_EXAMPLES, 6, 4), np.float32)
    return tf.data.Dataset.from_generator(
        lambda: ((rows, rows[:, 0]) for rows in features),
        output_signature=(tf.TensorSpec((None, 4)), tf.TensorSpec((None,))),
    )


def batched_sequences() -> tf.data.Dataset:
    return sequences().batch(1)


def reader() -> tuple[int, Any]:
    """Returns the number of examples of `arrays`, and a function that reads some."""

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features, labels = arrays()
        return tf.gather(features, indices), tf.gather(labels, indices)

    return _NUM_EXAMPLES, read


def reader_of_lists() -> tuple[int, Any]:
    """Returns a reader of two arrays in a list in a dictionary."""

    def read(indices: tf.Tensor) -> tuple[Any, tf.Tensor]:
        return {"pair": [tf.gather(arrays()[0], indices)] * 2}, indices

    return _NUM_EXAMPLES, read


def several() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns examples of two inputs and two outputs."""
    features, labels = arrays()
    first, second = features[:, :2], features[:, 2:]
    size = np.abs(features).sum(axis=1, keepdims=True)
    return {"first": first, "second": second}, {"kind": labels, "size": size}


def endless() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).repeat()


def without_labels() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()[0])


def unequal() -> tuple[np.ndarray, np.ndarray]:
    features, labels = arrays()
    return features, labels[:-1]


def raising() -> Any:
    raise KeyError("no such file")


def nothing() -> None:
    return None


def of_some_width(width: int = 3) -> keras.Model:
    return stacked(width)


def of_any(*arguments: Any) -> keras.Model:
    assert not arguments
    return stacked()


def of_data(data: Examples, width: int = 3) -> keras.Model:
    assert data.num_classes == 3
    return stacked(width)


def stacked(num_outputs: int = 3) -> keras.Model:
    return keras.Sequential([keras.layers.Dense(num_outputs)])


def not_compiled() -> keras.Model:
    return stacked()


def subclassed() -> keras.Model:
    model = Nested()
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)],
    )
    return model


def of_its_data(data: Any) -> keras.Model:
    """Takes what the data set says of itself."""
    model = stacked(data.num_classes)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def two_in_two_out() -> keras.Model:
    inputs = {
        "first": keras.Input([2], name="first"),
        "second": keras.Input([3], name="second"),
    }
    hidden = keras.layers.Concatenate()(list(inputs.values()))
    hidden = keras.layers.Dense(8, activation="relu")(hidden)
    outputs = {
        "kind": keras.layers.Dense(3, activation="softmax")(hidden),
        "size": keras.layers.Dense(1)(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        loss={"kind": "sparse_categorical_crossentropy", "size": keras.losses.Huber()},
        loss_weights={"kind": 0.3, "size": 2.0},
        metrics={
            "kind": ["accuracy"],
            "size": ["mae", keras.metrics.mean_squared_error],
        },
    )
    return model


def quantities() -> tuple[Any, Any]:
    """Returns examples of a quantity to predict, to train and to evaluate."""
    features, _ = arrays()
    sums = features.sum(axis=1, keepdims=True)
    return (features[:40], sums[:40]), (features[40:], sums[40:])


def regression() -> keras.Model:
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
    model.compile(
        loss="mean_squared_error",
        metrics=["mean_absolute_error", keras.metrics.MeanSquaredLogarithmicError()],
    )
    return model


def own_training() -> keras.Model:
    model = OwnTraining()
    model.compile(loss="mse")
    return model


def mean_of_a_batch() -> keras.Model:
    model = stacked()
    model.compile(loss=lambda labels, logits: tf.reduce_mean(logits))
    return model


def counting_metric() -> keras.Model:
    model = stacked()
    model.compile(loss="mse", metrics=[keras.metrics.AUC()])
    return model


def not_a_model() -> str:
    return "a model"


def blobs() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns three classes far from zero, 1,280 examples to train and 300 held out."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=1580)
    features = random.normal(20 + 10 * np.eye(3)[labels], 4).astype(np.float32)
    return (features[:1280], labels[:1280]), (features[1280:], labels[1280:])


def normalized() -> keras.Model:
    """Returns a classifier that is right only with moving statistics of its input.

    The layer "constant" has zeros as input: after n updates its moving variance is
    0.99 ** n.
    """
    inputs = keras.Input([3])
    constant = keras.layers.BatchNormalization(name="constant")(0 * inputs[:, :2])
    hidden = keras.layers.BatchNormalization(name="normalize")(inputs)
    hidden = keras.layers.Concatenate()([hidden, constant])
    made = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    made.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return made


def numbers() -> tuple[np.ndarray, np.ndarray]:
    """Labels [n] of a model that predicts [n, 1]."""
    features, _ = arrays()
    return features, features.sum(axis=1)


def guide_loss(y_true: Any, y_pred: Any) -> Any:
    """Returns the loss of Keras's guide to training with built-in methods."""
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def column_loss(y_true: Any, y_pred: Any) -> Any:
    """Takes the first column of labels, which `fit` makes of labels [n]."""
    return keras.ops.square(y_true[:, 0] - y_pred[:, 0])


def one_number(loss: Any = guide_loss, **settings: Any) -> keras.Model:
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1, name="size")])
    model.compile(loss=loss, **settings)
    return model


def guide() -> keras.Model:
    return one_number(metrics=["mae"])


def column() -> keras.Model:
    return one_number(column_loss)


def summed() -> keras.Model:
    return one_number(keras.losses.MeanSquaredError(reduction="sum"))


def regularized() -> keras.Model:
    """Adds losses of all kinds, and drops some activations."""
    inputs = keras.Input([5])
    hidden = keras.layers.Dense(
        8, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1)
    )(inputs)
    hidden = keras.layers.Dropout(0.5)(hidden)
    outputs = keras.layers.Dense(1, activity_regularizer="l2", name="size")(hidden)
    model = keras.Model(inputs, outputs)
    # The state of the second is no mean over examples.
    metrics = ["mae", keras.metrics.R2Score(name="r2")]
    model.compile(loss=guide_loss, metrics=metrics, weighted_metrics=["mse"])
    return model


def numbers_twice() -> Any:
    """Returns the examples of `numbers`, 40 to train and the rest to evaluate."""
    features, labels = numbers()
    return (features[:40], labels[:40]), (features[40:], labels[40:])


class _Asserting(keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(inputs, -1000.0, message="inputs are too large")
        return inputs


def asserting() -> keras.Model:
    """Fails in its first step, inside the runtime."""
    layers = [keras.Input([5]), _Asserting(), keras.layers.Dense(3)]
    made = keras.Sequential(layers)
    made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made
