"""A recurrent network that tags every word; padding does not count in the loss."""

import keras
import numpy as np

keras.utils.set_random_seed(4)
random = np.random.default_rng(1)
words = random.integers(1, 50, (400, 12))
for row, length in enumerate(random.integers(3, 13, 400)):
    words[row, length:] = 0
tags = words % 5

model = keras.Sequential(
    [
        keras.layers.Input((12,), dtype="int32"),
        keras.layers.Embedding(50, 8, mask_zero=True),
        keras.layers.SimpleRNN(8, return_sequences=True),
        keras.layers.TimeDistributed(keras.layers.Dense(5, activation="softmax")),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss="sparse_categorical_crossentropy",
    weighted_metrics=["accuracy"],
)
history = model.fit(words, tags, batch_size=30, epochs=3, validation_split=0.25)
print("loss:", history.history["loss"])
