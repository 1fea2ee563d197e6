"""A frozen base model inside of another model, then thawed with a smaller rate."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(18)
random = np.random.default_rng(0)
images = random.integers(0, 255, (192, 16, 16, 3)).astype("uint8")
labels = random.integers(0, 3, 192)

pictures = keras.Input((16, 16, 3))
hidden = layers.Conv2D(8, 3, strides=2, use_bias=False)(pictures)
hidden = layers.LayerNormalization()(hidden)
hidden = layers.ReLU()(hidden)
hidden = layers.Conv2D(8, 3, activation="relu")(hidden)
base = keras.Model(pictures, hidden, name="base")
base.trainable = False

inputs = keras.Input((16, 16, 3))
scaled = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
features = layers.GlobalAveragePooling2D()(base(scaled, training=False))
model = keras.Model(inputs, layers.Dense(3)(features))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
model.fit(images, labels, epochs=2, validation_split=0.25)

base.trainable = True
model.compile(keras.optimizers.RMSprop(1e-3), loss, metrics=["accuracy"])
model.fit(images, labels, epochs=4, initial_epoch=2, validation_split=0.25)
