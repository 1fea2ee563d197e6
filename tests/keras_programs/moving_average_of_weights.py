"""An exponential moving average of the weights, which replaces them at the end."""

import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(10)
images, labels = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.AdamW(
        0.01, weight_decay=0.01, use_ema=True, ema_momentum=0.9
    ),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(
    images,
    labels,
    batch_size=100,
    epochs=3,
    validation_split=0.2,
    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
)
print("loss of the average:", model.evaluate(images, labels, verbose=0)[0])
