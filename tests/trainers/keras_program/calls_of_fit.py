"""Calls of fit with arguments that an argument chooses.

Nothing in them is random, so that they can be compared with Keras's own fit.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

draw = np.random.default_rng(12)
x = draw.normal(size=(40, 4))
y = (x.sum(axis=1) > 0).astype("int64")
weights = draw.random(40) * 3
# Sequences of 2 to 9 numbers.
padded = np.where(np.arange(9)[:, None] < 2 + np.arange(40)[:, None, None] % 8, 1, 0)
padded = padded * draw.normal(size=(40, 9, 3))


def crossentropy(**settings):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **settings)


def small(*more, **compiled):
    keras.utils.set_random_seed(12)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(2), *more])
    model.compile(**{"optimizer": "sgd", "loss": crossentropy(), **compiled})
    return model


def parts_for_validation():
    few = {"batch_size": 10, "epochs": 2, "class_weight": {0: 1.0, 1: 10.0}}
    # The last 30 examples are held out, and 20 of them used.
    small(Squares()).fit(x, y, **few, validation_split=0.75, validation_steps=2)


class Unpacking(keras.Model):
    """Needs sample weights in training, and takes none in validation."""

    def __init__(self):
        super().__init__()
        # Functional models have tensors of this name.
        self.inputs = layers.Dense(2)

    def call(self, inputs):
        return self.inputs(inputs)

    def train_step(self, data):
        features, labels, sample_weights = data
        return super().train_step((features, labels, sample_weights))

    def test_step(self, data):
        features, labels = data
        return super().test_step((features, labels))


def weights_of_one_part():
    few = {"batch_size": 10, "epochs": 2}
    weighted = {**few, "sample_weight": weights}
    accuracy = {"weighted_metrics": ["accuracy"]}
    ratio = {"loss": crossentropy(reduction="mean_with_sample_weight")}
    small(**accuracy, **ratio).fit(x, y, **weighted, validation_data=(x, y))
    small(**accuracy).fit(x, y, **few, validation_data=(x, y, weights))


def steps_of_one_part():
    model = Unpacking()
    model(x[:2])
    model.set_weights([np.ones((4, 2)) / 4, np.zeros(2)])
    model.compile("sgd", crossentropy())
    few = {"batch_size": 10, "epochs": 2, "sample_weight": weights}
    model.fit(x, y, **few, validation_data=(x, y))


class Noisy(keras.utils.PyDataset):
    """Draws noise and its order from NumPy's generator."""

    def __init__(self, first=0, stop=40):
        super().__init__()
        self.rows = np.arange(first, stop)

    def __len__(self):
        return len(self.rows) // 10

    def __getitem__(self, index):
        rows = self.rows[10 * index : 10 * index + 10]
        return x[rows] + np.random.normal(size=(10, 4)), y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.rows)


def random_batches():
    small().fit(Noisy(), epochs=5)


class Sampling(keras.callbacks.Callback):
    """Draws from the same generators, as one does that shows some examples."""

    def on_train_begin(self, logs=None):
        self.sizes, self.table = [], np.zeros(2)

    def on_epoch_end(self, epoch, logs=None):
        for draw in (np.random.normal, tf.random.normal, keras.random.normal):
            draw([epoch])
        self.sizes.append(epoch)
        self.table[1] += 1


def random_parts():
    """Training and validation draw in turns."""
    small().fit(Noisy(0, 20), epochs=5, validation_data=Noisy(20, 40))


def random_parts_of_epochs():
    few = {"epochs": 5, "validation_data": Noisy(20, 40)}
    small().fit(Noisy(0, 20), **few, steps_per_epoch=2)
    parts = tf.data.Dataset.from_generator(
        lambda: (Noisy(0, 20)[index] for index in range(2)),
        output_signature=(tf.TensorSpec((10, 4)), tf.TensorSpec((10,))),
    )
    # Of unknown length, Keras 3.15 counts a batch more in the loss of an epoch.
    known = parts.apply(tf.data.experimental.assert_cardinality(2))
    small().fit(known, **few)


def random_parts_and_callback():
    few = {"epochs": 5, "validation_data": Noisy(20, 40)}
    sampling, later = Sampling(), small()
    small().fit(Noisy(0, 20), **few, callbacks=[sampling])
    # What follows depends on what the callback has drawn and kept.
    noise = tf.random.normal([40, 4], dtype=x.dtype) + keras.random.normal([40, 4])
    rows = np.random.permutation(40)[:20]
    epochs = len(sampling.sizes) - int(sampling.table[1]) // 2
    few = {"batch_size": 10, "shuffle": False, "epochs": epochs}
    later.fit((x + noise.numpy())[rows], y[rows], **few)


def of_lengths():
    """Yields batches of sequences of several lengths, without sample weights."""
    for length in (5, 7, 3, 9) * 2:
        rows = draw.normal(size=(10, length, 3))
        yield rows, rows[:, 0, 0] > 0, None


def generators():
    keras.utils.set_random_seed(12)
    model = keras.Sequential(
        [
            layers.Input((None, 3)),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("sgd", "binary_crossentropy")
    model.fit(of_lengths(), epochs=2, steps_per_epoch=4)


class Squares(layers.Layer):
    """Adds the mean of its squares to the loss."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs**2))
        return inputs


class CountedSquares(Squares):
    """Has a metric as well, so that the step of the model is Keras's own."""

    def __init__(self):
        super().__init__()
        self.positive = keras.metrics.Mean(name="positive")

    def call(self, inputs):
        self.positive.update_state(inputs > 0)
        return super().call(inputs)


def labels_without_a_loss():
    keras.utils.set_random_seed(12)
    hidden = layers.Dense(3, activity_regularizer="l1")
    model = keras.Sequential([layers.Input((4,)), hidden, CountedSquares()])
    model.compile("sgd")
    model.fit(x, y, batch_size=10, epochs=2, validation_data=(x, y))


def lengths():
    few = {"batch_size": np.int64(10), "epochs": np.int64(3)}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    # Keras ends an epoch at the end of the data, after 3, 1 and 3 steps.
    arrays = {"validation_data": (x, y), "validation_steps": 2}
    small(optimizer="adam").fit(x, y, **few, steps_per_epoch=3, **arrays)
    streamed = {"validation_data": data, "validation_steps": 3}
    small(optimizer="adam").fit(data, epochs=3, steps_per_epoch=6, **streamed)
    unknown = data.filter(lambda *_: True)
    small().fit(unknown, epochs=2, validation_data=unknown, validation_steps=9)
    # A sum depends on the size of a batch: of data without one Keras takes 32
    # examples, or all of them divided by the number of steps.
    summed = {"optimizer": "adam", "loss": crossentropy(reduction="sum")}
    small(**summed).fit(data, validation_data=(x, y))
    small(**summed).fit(x, y, validation_data=(x[:15], y[:15]), validation_steps=2)
    small().fit(x, y, epochs=3, initial_epoch=3)
    small().fit(x, y, epochs=0)


def _of_windows(inputs):
    """Returns a model whose inputs have no last axis of length 1."""
    hidden = layers.Conv1D(2, 3)(layers.Reshape((4, 1))(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(hidden)))


def last_axis_of_one():
    """A model of Keras's adds a last axis of length 1 to its inputs, or removes it."""
    keras.utils.set_random_seed(12)
    added = [layers.Input((4, 1)), layers.Conv1D(2, 3), layers.Flatten()]
    for model, features in (
        (keras.Sequential([*added, layers.Dense(2)]), x),
        (_of_windows(keras.Input((4,))), x[..., None]),
    ):
        model.compile("sgd", crossentropy(), metrics=["accuracy"])
        model.fit(features, y, batch_size=10, validation_data=(features, y))


class Cut(layers.Layer):
    """Cuts padding to the longest sequence of a batch."""

    def call(self, inputs):
        lengths = tf.reduce_sum(tf.cast(inputs[:, :, 0] != 0, "int32"), axis=1)
        return inputs[:, : tf.reduce_max(lengths)]


def of_triplets(labels, outputs):
    positive, negative = tf.unstack(outputs, axis=0)
    return keras.ops.mean(keras.ops.relu(positive - negative + 1), axis=0)


def of_sequences(labels, outputs):
    return tf.reduce_sum(outputs**2, axis=(1, 2)) - labels


def outputs_of_shards():
    """Outputs are no rows of examples, and halves of a batch have the mean of fit."""
    keras.utils.set_random_seed(12)
    inputs = layers.Input((4,))
    first, second = layers.Dense(3)(inputs), layers.Dense(3)(inputs)
    distances = [keras.ops.sum((inputs[:, :3] - e) ** 2, 1) for e in (first, second)]
    sequences = layers.Input((None, 3))
    # Padding is nothing without a bias, so that a longer shard has the same sums.
    cut = layers.Dense(2, use_bias=False)(Cut()(sequences))
    for features, entrance, outputs, loss in (
        (x, inputs, keras.ops.stack(distances), of_triplets),
        (x, inputs, keras.ops.mean((first - second) ** 2), lambda _, outputs: outputs),
        (padded, sequences, cut, of_sequences),
    ):
        model = keras.Model(entrance, outputs)
        model.compile("adam", loss)
        model.fit(features, y, batch_size=10, epochs=2, validation_data=(features, y))


def outputs_of_batches():
    """Some outputs are pairs of examples, which halves of a batch do not have."""
    outputs_of_shards()
    inputs = layers.Input((4,))
    first, second = layers.Dense(3)(inputs), layers.Dense(3)(inputs)
    model = keras.Model(inputs, keras.ops.matmul(first, keras.ops.transpose(second)))
    model.compile("adam", "mse")
    model.fit(x, y[:, None], batch_size=10, epochs=2, validation_split=0.25)
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    model.fit(x, np.arange(40) % 10, batch_size=10, epochs=2)
    # One value for each column of the outputs.
    model = keras.Sequential([inputs, layers.Dense(2)])
    correlation = keras.metrics.PearsonCorrelation(axis=0)
    model.compile("adam", "mse", metrics=[correlation])
    model.fit(x, x[:, :2], batch_size=10, epochs=2, validation_split=0.25)


CALLS = {
    "outputs_of_batches": outputs_of_batches,
    "outputs_of_shards": outputs_of_shards,
    "last_axis_of_one": last_axis_of_one,
    "labels_without_a_loss": labels_without_a_loss,
    "lengths": lengths,
    "generators": generators,
    "random_batches": random_batches,
    "random_parts": random_parts,
    "random_parts_of_epochs": random_parts_of_epochs,
    "random_parts_and_callback": random_parts_and_callback,
    "parts_for_validation": parts_for_validation,
    "weights_of_one_part": weights_of_one_part,
    "steps_of_one_part": steps_of_one_part,
}
CALLS[sys.argv[1]]()
