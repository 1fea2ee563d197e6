"""A frozen base is trained on with a new head, then thawed: two calls of fit."""

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(11)
digits = load_digits()
images = digits.images[..., None].astype("float32")
labels = digits.target

base = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Conv2D(8, 3, activation="gelu"),
        keras.layers.GroupNormalization(4),
        keras.layers.Flatten(),
    ],
    name="base",
)
base.trainable = False
inputs = keras.Input((8, 8, 1))
outputs = keras.layers.Dense(10)(base(inputs, training=False))
model = keras.Model(inputs, outputs)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
first = model.fit(images, labels, epochs=2, batch_size=64, validation_split=0.2)

base.trainable = True
model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
second = model.fit(
    images,
    labels,
    epochs=4,
    initial_epoch=first.epoch[-1] + 1,
    batch_size=64,
    validation_split=0.2,
)
print(first.epoch, second.epoch, model.evaluate(images, labels, verbose=0))
