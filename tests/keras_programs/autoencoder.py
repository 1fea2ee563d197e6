"""A convolutional autoencoder: the images are the labels."""

import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(16)
images = load_digits().images[..., None].astype("float32") / 16
noisy = np.clip(images + 0.3 * np.random.normal(size=images.shape), 0.0, 1.0)

inputs = keras.Input((8, 8, 1))
x = keras.layers.Conv2D(8, 3, activation="relu", padding="same")(inputs)
x = keras.layers.MaxPooling2D(2, padding="same")(x)
x = keras.layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same")(x)
outputs = keras.layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, outputs)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(
    x=noisy,
    y=images,
    epochs=2,
    batch_size=128,
    shuffle=True,
    validation_data=(noisy, images),
)
print("shape:", autoencoder.predict(noisy[:3], verbose=0).shape)
