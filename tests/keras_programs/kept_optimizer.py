"""A layer is frozen between two calls of fit, and the optimizer is kept."""

import keras
import numpy as np

keras.utils.set_random_seed(31)
draw = np.random.default_rng(31)
x = draw.normal(size=(90, 4))
y = x[:, :1] - x[:, 1:2] * x[:, 2:3]

# Of one shape, so that a moment of another weight fits.
hidden = [keras.layers.Dense(4, activation="tanh", use_bias=False) for _ in range(3)]
model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(1)])
optimizer = keras.optimizers.AdamW(0.01, weight_decay=5.0)
optimizer.exclude_from_weight_decay(var_list=[hidden[1].kernel])
model.compile(optimizer, "mse")
model.fit(x, y, epochs=2, batch_size=16)

hidden[0].trainable = False
model.compile(optimizer, "mse")
model.fit(x, y, epochs=2, batch_size=16)
print(model.evaluate(x, y, verbose=0), int(optimizer.iterations))
