"""A multilayer perceptron for features of any shape."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from models.base import classifier


def build(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    hidden_units: Sequence[int],
    dropout: float,
) -> keras.Model:
    """Flattens the features, then dense layers with ReLU, then logits."""
    features = keras.Input(tuple(input_shape), name="features")
    hidden = keras.layers.Flatten(name="flatten")(features)
    for index, units in enumerate(hidden_units, start=1):
        hidden = keras.layers.Dense(units, activation="relu", name=f"hidden_{index}")(
            hidden
        )
        if dropout:
            hidden = keras.layers.Dropout(dropout, name=f"dropout_{index}")(hidden)
    logits = keras.layers.Dense(num_classes, name="logits")(hidden)
    return keras.Model(features, logits, name="mlp")


SPEC = classifier(build)
