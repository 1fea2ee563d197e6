"""Losses and a metric that return one number, or one for each output, for a batch."""

import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(19)
features = np.random.default_rng(0).normal(size=(330, 5))
targets = features.sum(axis=1, keepdims=True)


def squared_error(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def largest_parts(y_true, y_pred):
    return ops.mean(ops.maximum(ops.abs(y_true), ops.abs(y_pred)))


def error_of_outputs(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=0)


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return squared_error(y_true, y_pred)


model = keras.Sequential(
    [
        keras.Input((5,)),
        keras.layers.Dense(8, activation="gelu"),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", loss=squared_error, metrics=[largest_parts, "mae"])
model.fit(features, targets, batch_size=50, epochs=3, validation_split=0.1)
for loss in (OwnCall(), error_of_outputs):
    model.compile("adam", loss=loss)
    model.fit(features, targets, batch_size=50, epochs=2)
