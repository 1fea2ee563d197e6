"""A model of sentences whose words and places have vectors (after keras.io)."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(5)
random = np.random.default_rng(0)
texts = random.integers(0, 50, (256, 12)).astype("int32")
labels = (texts[:, 0] > texts[:, 1]).astype("int32")


@keras.saving.register_keras_serializable()
class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, length, vocabulary, dimension, **kwargs):
        super().__init__(**kwargs)
        self.tokens = layers.Embedding(vocabulary, dimension)
        self.positions = layers.Embedding(length, dimension)
        # The same, but looked up for each example by itself.
        self.places = layers.Embedding(length, dimension)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        places = ops.broadcast_to(positions, ops.shape(x))
        return self.tokens(x) + self.positions(positions) + self.places(places)


inputs = keras.Input((12,), dtype="int32")
x = TokenAndPositionEmbedding(12, 50, 8)(inputs)
x = layers.Dense(16, activation="relu")(x)
x = layers.Flatten()(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(texts, labels, batch_size=32, epochs=2, validation_data=(texts, labels))
