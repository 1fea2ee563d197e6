"""Images that layers of the model flip, turn and zoom at random."""

import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(2)
digits = load_digits()
images = np.repeat(digits.images[..., np.newaxis].astype("float32") / 16, 3, axis=-1)
labels = keras.utils.to_categorical(digits.target, 10)

inputs = keras.Input((8, 8, 3))
x = keras.layers.RandomFlip("horizontal")(inputs)
x = keras.layers.RandomRotation(0.1)(x)
x = keras.layers.RandomZoom(0.1)(x)
x = keras.layers.Conv2D(8, 3, padding="same")(x)
x = keras.layers.BatchNormalization()(x)
x = keras.layers.Activation("relu")(x)
x = keras.layers.MaxPooling2D()(x)
x = keras.layers.SeparableConv2D(16, 3, activation="relu")(x)
x = keras.layers.GlobalAveragePooling2D()(x)
outputs = keras.layers.Dense(10)(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer="adam",
    loss=keras.losses.CategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels, batch_size=64, epochs=2, validation_split=0.2)
print("predicted:", model.predict(images[:5], verbose=0).argmax(axis=-1))
