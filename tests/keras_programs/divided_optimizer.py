"""One optimizer for the first layer and another for the rest, in two calls of fit."""

import keras
import numpy as np

keras.utils.set_random_seed(37)
draw = np.random.default_rng(37)
x = draw.normal(size=(90, 4))
y = x[:, :1] - x[:, 1:2] * x[:, 2:3]

model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(6, activation="tanh", name="first"),
        keras.layers.Dense(1),
    ]
)
chosen = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.05, momentum=0.9))
chosen[".*first/.*"] = keras.optimizers.AdamW(0.01, weight_decay=0.5)
model.compile(keras.optimizers.MultiOptimizer(chosen), "mse")
for _ in range(2):
    model.fit(x, y, epochs=2, batch_size=16)
optimizers = [model.optimizer, *model.optimizer.optimizers]
print([int(optimizer.iterations) for optimizer in optimizers])
