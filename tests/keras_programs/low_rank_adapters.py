"""A model that is trained, then trained again by adapters on the same arrays (LoRA)."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(5)
random = np.random.default_rng(0)
words = random.integers(0, 50, (160, 12))
labels = random.integers(0, 4, 160)

inputs = keras.Input((12,), dtype="int32")
embedding = layers.Embedding(50, 8)
hidden = layers.Dense(16, activation="relu")
head = layers.Dense(4)
outputs = head(layers.GlobalAveragePooling1D()(hidden(embedding(inputs))))
model = keras.Model(inputs, outputs)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
model.fit(words, labels, batch_size=20, epochs=1)

embedding.enable_lora(2)
hidden.enable_lora(2)
head.trainable = False
model.compile(keras.optimizers.AdamW(1e-2), loss, metrics=["accuracy"])
model.fit(words, labels, batch_size=32, epochs=2)
