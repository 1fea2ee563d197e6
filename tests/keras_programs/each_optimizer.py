"""One optimizer by name: `each_optimizer.py nadam`."""

import sys

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(9)
images, labels = load_digits(return_X_y=True)
name = sys.argv[1] if len(sys.argv) > 1 else "lion"
optimizer = keras.optimizers.get(name)
optimizer.clipnorm = 0.5

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(24, activation="tanh"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=64, epochs=2)
print(name, history.history["accuracy"])
