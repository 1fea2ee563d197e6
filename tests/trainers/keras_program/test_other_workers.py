"""Workers that run a program without its callbacks, and write its files elsewhere."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import tensorflow as tf

from trainers.keras_program.script import replaced_fit


def test_other_workers_load_what_they_have_exported(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "exported"
    module = tf.Module()
    module.seven = tf.Variable(7.0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    with replaced_fit(lambda *_: None, writes=False):
        model.export(path, verbose=False)
        layer = keras.layers.TFSMLayer(path, call_endpoint="serve")
        tf.saved_model.save(module, tmp_path / "module")
        assert tf.saved_model.load(tmp_path / "module").seven.numpy() == 7.0
    x = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(layer(x), model(x), rtol=1e-6)
    assert not list(tmp_path.iterdir())
