"""Calls of fit with arguments that an argument chooses.

Nothing in them is random, so that they can be compared with Keras's own fit.
"""

import sys

import keras
import numpy as np
from keras import layers

draw = np.random.default_rng(12)
x = draw.normal(size=(40, 4))
y = (x.sum(axis=1) > 0).astype("int64")


def small(**compiled):
    keras.utils.set_random_seed(12)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": "sgd", "loss": loss, **compiled})
    return model


def parts_for_validation():
    few = {"batch_size": 10, "epochs": 2}
    rare = {0: 1.0, 1: 10.0}
    small().fit(x, y, **few, validation_split=0.25, class_weight=rare)


{"parts_for_validation": parts_for_validation}[sys.argv[1]]()
