"""An optimizer that applies the mean of two batches, and clips by global norm."""

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(19)
images, labels = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=1.0),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
print(model.fit(images, labels, batch_size=60, epochs=2).history)
