"""Models and data that cannot be trained: tests.trainers.user_code.unfit:NAME."""

import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.trainers.user_code import factories


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return factories.arrays()


class Unordered:
    """Has a length and examples, but not as arrays, like a loader of PyTorch."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Any]:
        return iter([])


class NoCall(keras.Model):
    """A model whose training step never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(3)

    def train_step(self, data: Any) -> Any:
        return {"loss": self.hidden(data[0])}


class OwnEvaluation(factories.Nested):
    def test_step(self, data: Any) -> Any:
        return {}


class OwnResults(factories.Nested):
    def get_metrics_result(self) -> Any:
        return {}


class CountsCalls(keras.layers.Layer):
    """Keeps a number that belongs to no replica and to no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = tf.Variable(0.0, trainable=False, name="seen")

    @tf.function
    def call(self, inputs: Any) -> Any:
        self.seen.assign_add(1.0)
        return inputs


class CountsExamples(keras.metrics.Metric):
    """A metric that counts calls, as `CountsCalls` does."""

    def __init__(self) -> None:
        super().__init__(name="counted")
        self.count = tf.Variable(0.0)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self) -> Any:
        return self.count.read_value()


def plain_variable() -> keras.Model:
    model = keras.Sequential([CountsCalls(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def plain_variable_of_a_metric() -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[CountsExamples()])
    return model


def outer_variable() -> keras.Model:
    calls = keras.Variable(0.0, trainable=False, name="calls")

    def count(inputs: Any) -> Any:
        calls.assign_add(1.0)
        return inputs

    model = keras.Sequential([keras.layers.Lambda(count), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def numbers_of_batches() -> keras.Model:
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(3)(inputs)
    sums = [keras.ops.sum(hidden, axis=1), keras.ops.max(hidden, axis=1)]
    model = keras.Model(inputs, keras.ops.stack(sums))
    model.compile("sgd", lambda _, outputs: outputs[0] - outputs[1])
    return model


def strings() -> Any:
    return np.array([["a", "b"]] * 60), factories.arrays()[1]


def string_labels() -> Any:
    return factories.arrays()[0], np.array(["cat", "dog", "bird"])[
        factories.arrays()[1]
    ]


def objects_of_strings() -> Any:
    return np.array([["a", "b"]] * 60, dtype=object), factories.arrays()[1]


def complex_numbers() -> Any:
    features, labels = factories.arrays()
    return features + np.complex64(1j), labels


def alone() -> Any:
    return factories.arrays()[0]


def triple() -> Any:
    return *factories.arrays(), np.ones(60)


def two_triples() -> Any:
    return triple(), triple()


def reads_arrays() -> Any:
    features, labels = factories.arrays()
    return len(features), lambda indices: (features[:1], labels[:1])


def reads_three_rows() -> Any:
    return 60, lambda indices: (tf.ones([3, 5]), tf.ones([3], tf.int64))


def trains_on_three_rows() -> Any:
    one = (tf.ones([1, 5]), tf.ones([1], tf.int64))
    return reads_three_rows(), (16, lambda indices: one)


def batches() -> Any:
    return Batches()


def two_of_batches() -> Any:
    return Batches(), Batches()


def generator() -> Any:
    yield from zip(*factories.arrays(), strict=True)


def loader() -> Any:
    return Unordered(), Unordered()


def dates() -> Any:
    return np.array(["2020-01-01"] * 60, dtype="datetime64[D]"), factories.arrays()[1]


def ragged() -> Any:
    return tf.ragged.constant([[1.0, 2.0], [3.0]] * 30), factories.arrays()[1]


def ragged_lists() -> Any:
    return [[1.0, 2.0], [3.0]] * 30, factories.arrays()[1]


def sparse() -> Any:
    return tf.sparse.from_dense(factories.arrays()[0]), factories.arrays()[1]


def dataset_of_sparse() -> Any:
    return tf.data.Dataset.from_tensor_slices(sparse())


def dataset_of_ragged() -> Any:
    return tf.data.Dataset.from_tensor_slices(ragged())


def dataset_of_several_shapes() -> Any:
    def examples() -> Any:
        yield np.zeros(2, np.float32), 0
        yield np.zeros(3, np.float32), 1

    kinds = (tf.TensorSpec([None]), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(examples, output_signature=kinds)


def no_numbers() -> Any:
    return np.zeros([60, 0], np.float32), factories.arrays()[1]


def labels_from_minus_one() -> Any:
    features, labels = factories.arrays()
    return features, labels - 1


def labels_too_large() -> Any:
    features, labels = factories.arrays()
    return features, labels + 2_000_000_000


def labels_in_a_column() -> Any:
    features, labels = factories.arrays()
    return features, labels[:, None] + 7


def labels_not_a_number() -> Any:
    features, labels = factories.arrays()
    return features, np.where(labels == 1, np.nan, labels.astype(np.float32))


def more_classes_to_evaluate() -> Any:
    features, labels = factories.arrays()
    return (features, labels), (features, labels + 5)


def read_with_more_classes() -> Any:
    """Labels that are known once they are read."""
    number, read = factories.reader()

    def read_more(indices: tf.Tensor) -> Any:
        features, labels = read(indices)
        return features, labels + 5

    return number, read_more


def two_kinds_with_more_classes() -> Any:
    features, labels = factories.several()
    return features, {**labels, "kind": labels["kind"] + 1}


def ends_well() -> Any:
    sys.exit(0)


def ends_as_if_diverged() -> Any:
    sys.exit(3)


def ends_otherwise() -> Any:
    raise GeneratorExit


def colorful() -> Any:
    raise ValueError("\x1b[1mbold\x1b[0m words")


def ending_layer() -> keras.Model:
    class Ending(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            sys.exit(0)

    model = keras.Sequential([Ending(), keras.layers.Dense(3)])
    model.compile(loss="mse")
    return model


def frozen() -> keras.Model:
    model = factories.subclassed()
    model.trainable = False
    return model


def connected() -> keras.Model:
    model = factories.stacked()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Turn(keras.layers.Layer):
    """Multiplies by a matrix of complex numbers."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[-1], 3), dtype="complex64", initializer="ones"
        )

    def call(self, inputs: Any) -> Any:
        return tf.math.real(tf.matmul(tf.cast(inputs, tf.complex64), self.kernel))


def complex_weight() -> keras.Model:
    model = keras.Sequential([Turn(name="turn")])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def with_states() -> keras.Model:
    inputs = keras.Input(batch_shape=(20, 5))
    hidden = keras.layers.Reshape((5, 1))(inputs)
    hidden = keras.layers.GRU(4, stateful=True, name="kept")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def misspelled_loss() -> keras.Model:
    model = factories.stacked()
    model.compile(loss="sparse_categorical_crossentropi")
    return model


def misspelled_metric() -> keras.Model:
    model = factories.stacked()
    model.compile(loss="sparse_categorical_crossentropy", metrics=["acuracy"])
    return model


def too_few_outputs() -> keras.Model:
    model = factories.stacked(2)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def a_class() -> Any:
    return factories.Nested


def without_call() -> keras.Model:
    return NoCall()


def own_evaluation() -> keras.Model:
    model = OwnEvaluation()
    model.compile(loss="sparse_categorical_crossentropy")
    return model


def own_results() -> keras.Model:
    model = OwnResults()
    model.compile(loss="sparse_categorical_crossentropy")
    return model


def for_others() -> keras.Model:
    """Takes other inputs by name than the data has."""
    model = keras.Model(inputs := keras.Input([5], name="third"), inputs)
    model.compile(loss="mse")
    return model


def three_numbers() -> keras.Model:
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3)])
    model.compile(loss="mse")
    return model


def labels_of_two_numbers() -> Any:
    return np.ones([60, 5], np.float32), np.ones([60, 2], np.float32)


def with_an_argument(path: str) -> Any:
    return labels_of_two_numbers()
