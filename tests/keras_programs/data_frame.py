"""A table of pandas: its columns as features, one of them as the target."""

import keras
import numpy as np
import pandas as pd

keras.utils.set_random_seed(13)
table = pd.DataFrame(
    np.random.default_rng(0).normal(size=(200, 4)), columns=["a", "b", "c", "d"]
)
target = 2 * table["a"] - table.pop("b")
model = keras.Sequential(
    [
        keras.Input((3,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", "mse", metrics=["mae"])
model.fit(table, target, batch_size=20, epochs=2, validation_split=0.2)
print(model.evaluate(table, target, verbose=0))
