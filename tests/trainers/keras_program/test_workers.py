"""Programs under several workers, which train as with Keras's own `fit`."""

import pathlib

import pytest

from tests.trainers.keras_program.beside_fit import assert_as_by_fit, by_fit, under

# test_same_as_fit.py and test_script.py have programs under several workers, and
# tests/cluster tables, layer state and an optimizer in slices.
pytestmark = pytest.mark.exhaustive

_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")

_TABLES = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.integers(0, 20, size=(32, 3))
y = random.normal(size=(32, 1))
for widths in ((4,), (7, 4)):
    inputs = keras.Input((3,), dtype="int32")
    tables = [keras.layers.Embedding(20, width)(inputs) for width in widths]
    flat = [keras.layers.Flatten()(table) for table in tables]
    joined = flat[0] if len(flat) == 1 else keras.layers.Concatenate()(flat)
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=16, epochs=1)
"""


_STATE = """
import keras
import numpy as np

random = np.random.default_rng(0)
x = random.normal(size=(32, 4))
y = random.normal(size=(32, 1))

class Counts(keras.layers.Layer):
    def build(self, shape):
        self.counts = [
            self.add_weight(shape=(), dtype=dtype, initializer="ones", trainable=False)
            for dtype in ("uint8", "int16", "uint32", "uint64", "int64")
        ]
        self.mean = self.add_weight(shape=(), dtype="float64", trainable=False)

    def call(self, x, training=False):
        if training:
            for count in self.counts:
                number = keras.ops.cast(count, "int64") + 1
                count.assign(keras.ops.cast(number, count.dtype))
            self.mean.assign(self.mean + 0.1)
        return x

keras.utils.set_random_seed(0)
dense = keras.layers.Dense(1, dtype="float32")
model = keras.Sequential([keras.Input((4,)), Counts(), dense])
model.compile(keras.optimizers.SGD(0.0), "mse")
model.fit(x, y, batch_size=16, epochs=2)
"""


def test_tables_and_layer_state_have_their_own_widths_and_types(
    tmp_path: pathlib.Path,
) -> None:
    """A program with both is started once.

    TensorFlow refused the second width of a table at one place of a model. Gradients in
    float32 once decided the type of state in float64, and of integers collectives take
    two types alone.
    """
    text = _TABLES + _STATE
    assert_as_by_fit(under(tmp_path, text, *_WORKERS), by_fit(tmp_path, text))


_UNUSED = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.normal(size=(48, 3))
y = random.normal(size=(48, 1))
inputs = keras.Input((3,))
outputs = {n: keras.layers.Dense(s, name=n)(inputs) for n, s in (("a", 1), ("b", 500))}
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), loss={"a": "mse"})
model.fit(x, {"a": y}, batch_size=12, epochs=2)
"""


def test_a_worker_updates_only_weights_without_gradients(
    tmp_path: pathlib.Path,
) -> None:
    """The loss does not depend on the weights that the second worker has."""
    found = under(tmp_path, _UNUSED, *_WORKERS, "--shard_optimizer_state")
    assert_as_by_fit(found, by_fit(tmp_path, _UNUSED))


_OWN_VARIABLES = """
import keras
import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)
x = random.normal(size=(32, 4))
y = random.normal(size=(32, 1))
rate, factor = tf.Variable(0.1, dtype=tf.float64), keras.Variable(1.0, trainable=False)

class Anneal(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        rate.assign(0.05)

    def on_epoch_end(self, epoch, logs=None):
        rate.assign(rate / 2)
        factor.assign(factor + 1)

def loss(labels, predictions):
    return factor * keras.losses.mean_squared_error(labels, predictions)

keras.utils.set_random_seed(0)
for _ in range(2):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(lambda: rate), loss)
    model.fit(x, y, batch_size=16, epochs=3, callbacks=[Anneal()])
"""


def test_variables_that_callbacks_set_are_equal_on_all_workers(
    tmp_path: pathlib.Path,
) -> None:
    found = under(tmp_path, _OWN_VARIABLES, *_WORKERS)
    assert_as_by_fit(found, by_fit(tmp_path, _OWN_VARIABLES))
