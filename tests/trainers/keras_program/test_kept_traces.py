"""Calls of `fit` in a loop: one trace for all, as in Keras, and the same training."""

import pathlib

import numpy as np
import pytest

from tests import processes
from tests.markers import chosen, further
from tests.trainers.keras_program.beside_fit import assert_as_by_fit, by_fit, under

_BEGIN = """
import gc
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(48, 4))
y = x.sum(axis=1)
calls = []


class Noted(keras.layers.Dense):
    factor = 1.0

    def call(self, inputs):
        calls.append(len(calls))
        return self.factor * super().call(inputs)


class Predict(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        logs["predicted"] = float(self.model.predict(x[:8], verbose=0).sum())


def is_traced(*args, **kwargs):
    before = len(calls)
    model.fit(*args, **kwargs)
    return len(calls) > before


noted = Noted(3, activation="tanh")
layers = [keras.layers.Input((4,)), noted, keras.layers.Dense(1)]
"""
# What a program does between two calls of `fit`.
_LOOP = """
optimizer = keras.optimizers.Adam(0.05, weight_decay=0.01, use_ema=True)
optimizer.exclude_from_weight_decay(var_names=["bias"])
model = keras.Sequential(layers)
model.compile(optimizer, "mse", metrics=["mae"])
features = keras.Sequential([keras.Input((3,)), model.layers[-1]])
features.predict(x[:8, :3], verbose=0)


class PredictFeatures(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        logs["features"] = float(features.predict(x[:8, :3], verbose=0).sum())
        if not laters:
            laters.append(keras.Sequential([keras.Input((3,)), model.layers[-1]]))
        logs["later"] = float(laters[0].predict(x[:8, :3], verbose=0).sum())


laters = []
settings = dict(batch_size=16, epochs=2, callbacks=[Predict(), PredictFeatures()])
for number in range(4):
    assert is_traced(x, y, validation_data=(x[:20], y[:20]), **settings) == (not number)
    optimizer.learning_rate = 0.04 / (number + 1)
    model.set_weights([0.9 * weight for weight in model.get_weights()])
    mean = np.mean((model(x)[:, 0] - y) ** 2)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0)[0], mean, rtol=1e-6)
    np.testing.assert_allclose(model.predict(x[:8], verbose=0), model(x[:8]))
    # The callback makes the later model, and runs on the chief alone.
    for one in (features, *laters):
        rows = x[:8, :3]
        np.testing.assert_allclose(one.predict(rows, verbose=0), one(rows))
    if number == 1:
        optimizer.iterations.assign(100)
    x, y = -x, y + 0.1
# The steps have the former one.
noted.factor = 2.0
settings["validation_data"] = (x[:20], y[:20])
assert not is_traced(x, y, **settings)
for make in "train", "test", "predict":
    getattr(model, f"make_{make}_function")(force=True)
assert is_traced(x, y, **settings)
noted.factor = 3.0
model.compile(optimizer, "mse")
assert is_traced(x, y, **settings)
"""
_STRATEGIES = (
    "one_device",
    "mirrored",
    "tower",
    "multi_worker_mirrored --num_workers=2",
)


def _assert_trains_as_fit(
    text: str, tmp_path: pathlib.Path, strategy: str, num_fits: int
) -> None:
    """Asserts that a program has the weights, losses and metrics of Keras's `fit`."""
    plain_folder, folder = tmp_path / "plain", tmp_path / "run"
    for each in (plain_folder, folder):
        each.mkdir()
    # Histograms trace the layers once more.
    every = "--set=report.histogram_every_steps=none"
    found = under(folder, _BEGIN + text, every, *f"--strategy={strategy}".split())
    plain = by_fit(plain_folder, _BEGIN + text)
    assert len(found) == num_fits
    assert_as_by_fit(found, plain)
    for one, other in zip(found, plain, strict=True):
        assert one["history"].keys() == other["history"].keys()
        for name, values in one["history"].items():
            # Losses and metrics are counted in float32.
            np.testing.assert_allclose(values, other["history"][name], rtol=1e-6)


@pytest.mark.parametrize("strategy", chosen(_STRATEGIES, ["mirrored"]))
def test_a_loop_of_fits_is_traced_once(strategy: str, tmp_path: pathlib.Path) -> None:
    _assert_trains_as_fit(_LOOP, tmp_path, strategy, num_fits=7)


# Each change makes another step.
_CHANGES = """
schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
model = keras.Sequential(layers)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
assert is_traced(x, y, batch_size=16)
assert not is_traced(x, y, batch_size=16)
assert is_traced(x, y, batch_size=24)
held_out = (x[:20], y[:20])
assert is_traced(x, y, batch_size=24, validation_data=held_out)
settings = dict(batch_size=24, validation_data=held_out)
assert is_traced(x, y, sample_weight=np.linspace(0, 1, 48), **settings)
settings["validation_data"] = (*held_out, np.linspace(0, 1, 20))
assert is_traced(x, y, **settings)
model.train_on_batch(x, y)
is_traced(x.astype("float32"), y, batch_size=24)
data = tf.data.Dataset.from_tensor_slices((x, y))
is_traced(data.batch(24))
is_traced(data.repeat(2).batch(20))
model.optimizer.learning_rate = schedule
model.compile(model.optimizer, "mae")
assert is_traced(x, y, batch_size=24)
# Keras follows the former one until `compile`, which is equal here.
equal = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
model.optimizer.learning_rate = equal
assert is_traced(x, y, batch_size=24) or "trainers.main" not in sys.modules
other = keras.Sequential([noted, keras.layers.Dense(1)])
other.compile("sgd", "mse")
other.fit(x, y, batch_size=24)
is_traced(x, y, batch_size=24)
other.fit(x, y, batch_size=24)
"""


@pytest.mark.parametrize("strategy", chosen(_STRATEGIES, ["one_device"]))
def test_other_steps_are_traced_anew(strategy: str, tmp_path: pathlib.Path) -> None:
    _assert_trains_as_fit(_CHANGES, tmp_path, strategy, num_fits=14)


_OWN_STEP = """
class Own(keras.Sequential):
    def compile(self, optimizer, second, **settings):
        super().compile(optimizer, **settings)
        self.second = second
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        first, last = noted.trainable_variables, self.layers[-1].trainable_variables
        for optimizer, variables in ((self.optimizer, first), (self.second, last)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True)[:, 0] - y))
            optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


model = Own(layers)
first, second = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam(0.05)
model.compile(first, second)
for number in range(3):
    assert is_traced(x, y, batch_size=16, epochs=2) == (not number)
    second.learning_rate = 0.02
    noted.factor = 2.0
"""


@pytest.mark.parametrize(
    "strategy", ["one_device", further("mirrored"), further("tower")]
)
def test_a_step_of_the_models_own_is_traced_once(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    _assert_trains_as_fit(_OWN_STEP, tmp_path, strategy, num_fits=3)


# Layers with state: the variance of a batch is that of one device's.
_STATE = """
inputs = keras.Input((4,))
hidden = keras.layers.BatchNormalization()(noted(inputs))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile("adam", "mse")
for number in range(3):
    settings = dict(batch_size=16, validation_data=(x[:20], y[:20]))
    assert is_traced(x, y, **settings) == (not number)
    model.predict(x, verbose=0)
    variance = model.layers[2].moving_variance
    variance.assign(variance + 0.1)
gc.collect()
# Examples of a `fit` may take most of the memory.
assert not [one for one in gc.get_objects() if type(one).__name__ == "ArraySource"]
"""


def test_values_of_layers_are_kept_and_no_examples(tmp_path: pathlib.Path) -> None:
    _assert_trains_as_fit(_STATE, tmp_path, "one_device", num_fits=3)


_ON_ONE_TASK = """
import os

model = keras.Sequential(layers)
model.compile("adam", "mse")
traced = [is_traced(x, y, batch_size=16)]
try:
    os.close(os.open(f"{sys.argv[0]}.forced", os.O_CREAT | os.O_EXCL))
    model.make_train_function(force=True)
except FileExistsError:
    pass
traced += [is_traced(x, y, batch_size=16) for _ in range(2)]
assert traced == [True, True, False]
"""


def test_tasks_agree_on_a_trace(tmp_path: pathlib.Path) -> None:
    _assert_trains_as_fit(_ON_ONE_TASK, tmp_path, _STRATEGIES[-1], num_fits=3)


_LABELS = """
model = keras.Sequential([*layers[:-1], keras.layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss)
labels = np.arange(48) % 3
model.fit(x, labels, batch_size=16)
model.fit(x, labels + 1, batch_size=16)
"""


def test_labels_of_each_fit_are_checked(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_BEGIN + _LABELS)
    words = (f"--script={path}", f"--run_dir={tmp_path / 'run'}")
    done = processes.run(*words, "--strategy=one_device", folder=tmp_path)
    assert done.returncode == 2
    assert "has a label that is 3, and the model has 3 outputs" in done.stderr
