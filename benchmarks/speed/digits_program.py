"""Model and data of `--model=mlp --dataset=digits` as a program that calls `fit`."""

import keras
import sklearn.datasets

images, labels = sklearn.datasets.load_digits(return_X_y=True)
images = images[:1437].reshape(-1, 8, 8, 1).astype("float32") / 16
model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels[:1437], batch_size=64, epochs=175)
