"""A generator of examples as a tf.data.Dataset without an end."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(12)


def examples():
    random = np.random.default_rng(5)
    while True:
        features = random.normal(size=8).astype("float32")
        yield features, np.float32(features.sum() > 0)


data = tf.data.Dataset.from_generator(
    examples,
    output_signature=(
        tf.TensorSpec((8,), tf.float32),
        tf.TensorSpec((), tf.float32),
    ),
)
data = data.shuffle(100, seed=1).batch(32).prefetch(tf.data.AUTOTUNE)
model = keras.Sequential(
    [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
)
model.compile(
    "adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(
    data, epochs=3, steps_per_epoch=20, validation_data=data, validation_steps=5
)
print(history.history)
