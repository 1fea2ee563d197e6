"""Attributes of a model and of data, which callbacks set on the chief alone."""

import pathlib
from typing import Any

import keras
import numpy as np

from tests.trainers.keras_program.beside_fit import assert_as_by_fit, by_fit, under
from trainers.keras_program.lent_model.attributes import trained_parts

_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")

# Each task writes its weights after each fit but the last, which the chief alone ends.
_PROGRAM = """
import os
import pathlib

import keras
import numpy as np

random = np.random.default_rng(0)
x = random.normal(size=(32, 3))
y = random.normal(size=(32, 1))
folder = pathlib.Path(f"task-{os.getpid()}")
folder.mkdir()
keras.utils.set_random_seed(0)

class Scale(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self._factor, self.shifts = 1.0, [0.0, 0.0]

    def scale(self, factor, shift):
        self._factor = factor
        self.shifts[1] = shift

    def call(self, x):
        return self._factor * x + sum(self.shifts)

class Loss(keras.losses.Loss):
    weight, power = 1.0, np.ones(1)

    def call(self, labels, outputs):
        squares = keras.ops.square(labels - outputs)
        return self.weight * self.power[0] * keras.ops.mean(squares, axis=-1)

class Net(keras.Model):
    share = 1.0

    def train_step(self, data):
        x, y = data
        return super().train_step((x, self.share * y))

class Data(keras.utils.PyDataset):
    scale = 1.0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        rows = slice(16 * index, 16 * (index + 1))
        return self.scale * x[rows], y[rows]

class Then(keras.callbacks.Callback):
    outputs = None

    def __init__(self, change, moment="on_epoch_end"):
        super().__init__()
        self.change = change
        setattr(self, moment, lambda *_, **__: change(self))

def made(kind=keras.Model):
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1)(Scale()(keras.layers.Dense(4, name="h")(inputs)))
    return kind(inputs, outputs)

def compiled(model, optimizer=None, loss="mse"):
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss)
    return model

def fitted(model, *data, callbacks=(), epochs=1):
    history = model.fit(*data, batch_size=16 if len(data) > 1 else None,
                        epochs=epochs, callbacks=list(callbacks))
    number = len(list(folder.iterdir()))
    np.savez(folder / f"{number}.npz", *model.get_weights())
    return history

def all_of(self):
    model = self.model
    model.get_layer("h").trainable = False
    model.layers[2].scale(2.0, 0.25)
    model.optimizer.clipnorm = 0.01
    model.share = 0.5
    model.loss.weight = 0.5
    model.loss.power = np.full(1, 0.5)
    self.outputs = model(x)

# What one callback changes for the fit after the next compile.
model = compiled(made(Net), loss=Loss())
callback = Then(all_of)
fitted(model, x, y, callbacks=[callback], epochs=2)
compiled(model, model.optimizer, model.loss)
fitted(model, x, 0.5 * y + callback.outputs.numpy())
# Before the first step is traced.
model = compiled(made(Net))
begins = Then(lambda self: setattr(self.model, "share", 0.25), "on_train_begin")
fitted(model, x, y, callbacks=[begins])
# Data that become harder in a fit.
data = Data()
harder = Then(lambda self: setattr(data, "scale", data.scale / 2))
model = compiled(made())
fitted(model, data, callbacks=[harder], epochs=3)
fitted(model, data)
model.fit(x, y, batch_size=16)
"""


def test_what_callbacks_set_reaches_all_workers(tmp_path: pathlib.Path) -> None:
    """Each worker once trained with its own values, and the chief with others."""
    plain, run = tmp_path / "plain", tmp_path / "run"
    for folder in (plain, run):
        folder.mkdir()
    expected = by_fit(plain, _PROGRAM)
    assert_as_by_fit(under(run, _PROGRAM, *_WORKERS), expected)
    tasks = list(run.glob("task-*"))
    assert len(tasks) == 2
    (of_plain,) = plain.glob("task-*")
    names = sorted(path.name for path in of_plain.iterdir())
    assert len(names) == 5
    for task in tasks:
        assert sorted(path.name for path in task.iterdir()) == names
        for name in names:
            found, weights = np.load(task / name), np.load(of_plain / name)
            for key in weights:
                np.testing.assert_allclose(found[key], weights[key], rtol=1e-9)


def _compiled(rate: float = 0.1, **settings: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(rate, **settings), "mse")
    return model


def test_parts_of_models_that_train_alike_are_equal() -> None:
    parts = trained_parts(_compiled())
    # Rates are variables, which the chief sends.
    assert trained_parts(_compiled(0.2)) == parts
    frozen, wide = _compiled(), _compiled()
    frozen.layers[0].trainable = False
    wide.layers[0].enable_lora(1)
    weights = {"weights (shapes, types, trainable)"}
    for other, names in (
        (frozen, weights),
        (wide, weights),
        (_compiled(clipnorm=0.1), {"clipnorm of 0/SGD"}),
    ):
        found = trained_parts(other)
        assert found.keys() == parts.keys()
        assert {name for name in parts if found[name] != parts[name]} == names
