"""Data and models whose training depends on each setting of an update.

Flags name them tests.updates.factories:NAME.
"""

import keras
import numpy as np

NUM_EXAMPLES = 16
NUM_CLASSES = 3
NUM_CATEGORIES = 12

# Features and labels.
Arrays = tuple[np.ndarray, np.ndarray]


def quantities() -> tuple[Arrays, Arrays]:
    """Returns features [n, 5] and labels [n], to train and to evaluate.

    The last feature is so small that its gradients are near the epsilon of Adam (1e-7).
    """
    generator = np.random.default_rng(0)
    features = generator.standard_normal((NUM_EXAMPLES, 5))
    features[:, 4] *= 1e-5
    both = features, generator.integers(NUM_CLASSES, size=NUM_EXAMPLES)
    return both, both


def categories() -> tuple[Arrays, Arrays]:
    """Returns ids [n, 2] and labels [n]; some ids occur often and others never."""
    generator = np.random.default_rng(1)
    ids = generator.integers(NUM_CATEGORIES // 2, size=(NUM_EXAMPLES, 2))
    both = ids, generator.integers(NUM_CLASSES, size=NUM_EXAMPLES)
    return both, both


def perceptron() -> keras.Model:
    """Builds a model without ties or biases of zero, which would not decay."""
    features = keras.Input([5])
    hidden = _dense("hidden", 6, seed=1, activation="tanh")(features)
    model = keras.Model(features, _dense("logits", NUM_CLASSES, seed=2)(hidden))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def embedding() -> keras.Model:
    """Builds a model that embeds two ids, so that the gradient of its table is rows."""
    ids = keras.Input([2], dtype="int64")
    table = keras.layers.Embedding(NUM_CATEGORIES, 4, _initial_table())
    return _of_vectors(ids, table(ids))


def embedding_as_a_product() -> keras.Model:
    """Builds the same function of the same weights, whose table has a dense gradient.

    Keras's optimizers take the rows of a gradient one by one, also several rows of one
    id: its Adagrad adds up their squares instead of squaring their sum (Keras 3.15).
    """
    ids = keras.Input([2], dtype="int64")
    table = keras.layers.Dense(4, use_bias=False, kernel_initializer=_initial_table())
    one_hot = keras.layers.CategoryEncoding(NUM_CATEGORIES, "one_hot")
    return _of_vectors(ids, table(one_hot(keras.ops.expand_dims(ids, -1))))


def _of_vectors(ids: keras.KerasTensor, vectors: keras.KerasTensor) -> keras.Model:
    hidden = keras.layers.Flatten()(vectors)
    model = keras.Model(ids, _dense("logits", NUM_CLASSES, seed=4)(hidden))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _initial_table() -> keras.Initializer:
    return keras.initializers.RandomUniform(seed=3)


def _dense(
    name: str, units: int, seed: int, activation: str | None = None
) -> keras.layers.Layer:
    return keras.layers.Dense(
        units,
        activation,
        kernel_initializer=keras.initializers.GlorotUniform(seed),
        bias_initializer="ones",
        name=name,
    )
