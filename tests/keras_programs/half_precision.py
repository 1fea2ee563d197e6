"""mixed_float16, for which Keras scales the loss."""

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(14)
keras.mixed_precision.set_global_policy("mixed_float16")
digits = load_digits()
model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
        keras.layers.Activation("softmax", dtype="float32"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(digits.images[..., None], digits.target, batch_size=64, epochs=2)
print(
    type(model.optimizer).__name__,
    model.evaluate(digits.images[..., None], digits.target, verbose=0),
)
