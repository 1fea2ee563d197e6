"""A multilayer perceptron for features of any shape."""

import keras

from models.base import Examples, Settings
from models.classification import classifier, dropout, require_quantities


def build(data: Examples, settings: Settings) -> keras.Model:
    """Builds a network of dense layers with ReLU, then logits, on flat features."""
    require_quantities("mlp", data)
    features = keras.Input(data.input_shape, name="features")
    hidden = hidden_layers(keras.layers.Flatten(name="flatten")(features), settings)
    logits = keras.layers.Dense(data.num_classes, name="logits")(hidden)
    return keras.Model(features, logits, name="mlp")


def hidden_layers(features: keras.KerasTensor, settings: Settings) -> keras.KerasTensor:
    """Adds dense layers with ReLU to features [n, width], with dropout if it is set."""
    hidden = features
    for index, units in enumerate(settings.hidden_units, start=1):
        hidden = keras.layers.Dense(units, activation="relu", name=f"hidden_{index}")(
            hidden
        )
        # Without dropout the model has no layer for it, and no random state.
        if settings.dropout:
            hidden = dropout(settings.dropout, f"dropout_{index}", seed=index)(hidden)
    return hidden


SETTINGS = ("hidden_units", "dropout")
SPEC = classifier(build)
