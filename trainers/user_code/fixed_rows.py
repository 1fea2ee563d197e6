"""Models that compute batches of one size alone."""

from typing import Any

import keras
import tensorflow as tf


def fixed_rows(model: keras.Model, features: Any) -> int | None:
    """Returns the only number of examples a model computes; None if it takes any.

    The number of rows of an input is no sign of it: a Sequential model has that of the
    first rows it was called with, and Keras trains it with others. So the model is
    traced with the features of a few examples, which changes nothing.
    """
    if not model.built:
        return None
    rows = {shape[0] for shape in shapes_of(model, "inputs")} - {None}
    if len(rows) != 1 or tf.nest.flatten(features)[0].shape[0] in rows:
        return None

    def trace(features: Any) -> Any:
        with keras.StatelessScope():
            return model(features, training=False)

    try:
        tf.function(trace, autograph=False).get_concrete_function(features)
    # Whatever it is, an error of the model itself appears again where it is called.
    except Exception:
        return int(rows.pop())
    return None


def shapes_of(model: keras.Model, name: str) -> list[tuple[Any, ...]]:
    """Returns the shapes of a functional model's `inputs` or `outputs`.

    Other models may have attributes of any kind with these names.
    """
    found = tf.nest.flatten(getattr(model, name, ()))
    return [tuple(one.shape) for one in found if isinstance(one, keras.KerasTensor)]
