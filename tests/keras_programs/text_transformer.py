"""A transformer block that classifies sentences of unequal length."""

import keras
import numpy as np

keras.utils.set_random_seed(3)
random = np.random.default_rng(0)
lengths = random.integers(5, 20, 512)
texts = np.zeros((512, 20), "int32")
for row, length in enumerate(lengths):
    texts[row, :length] = random.integers(1, 200, length)
labels = (texts[:, 0] > 100).astype("int32")


@keras.saving.register_keras_serializable()
class TransformerBlock(keras.layers.Layer):
    def __init__(self, dimension, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(heads, dimension)
        self.feed_forward = keras.Sequential(
            [
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(dimension),
            ]
        )
        self.first_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.second_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout = keras.layers.Dropout(0.1)
        self.supports_masking = True

    def call(self, inputs, training=None, mask=None):
        attended = self.attention(inputs, inputs, attention_mask=mask[:, None, :])
        attended = self.first_norm(inputs + self.dropout(attended, training=training))
        return self.second_norm(attended + self.feed_forward(attended))


inputs = keras.Input((20,), dtype="int32")
x = keras.layers.Embedding(200, 16, mask_zero=True)(inputs)
x = TransformerBlock(16, 2)(x)
x = keras.layers.GlobalAveragePooling1D()(x)
x = keras.layers.Dropout(0.1)(x)
outputs = keras.layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(texts, labels, batch_size=32, epochs=2, validation_data=(texts, labels))
model.summary()
