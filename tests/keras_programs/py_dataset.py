"""Batches from a keras.utils.PyDataset, the last of which is smaller."""

import math

import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(13)


class Digits(keras.utils.PyDataset):
    def __init__(self, images, labels, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.images, self.labels = images, labels
        self.batch_size = batch_size

    def __len__(self):
        return math.ceil(len(self.images) / self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.images[rows] / np.float32(16), self.labels[rows]


images, labels = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adamax",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    Digits(images[:1200], labels[:1200], 64),
    epochs=2,
    validation_data=Digits(images[1200:], labels[1200:], 100),
)
print(history.history)
