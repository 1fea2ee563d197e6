"""Regression with normalized features, a loss of one's own and two schedules."""

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(5)
features, targets = load_diabetes(return_X_y=True)
targets = (targets - targets.mean()) / targets.std()

normalization = keras.layers.Normalization()
normalization.adapt(features)
model = keras.Sequential(
    [
        normalization,
        keras.layers.Dense(16, activation="gelu", kernel_regularizer="l2"),
        keras.layers.Dense(1),
    ]
)


def squared_error(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


schedule = keras.optimizers.schedules.CosineDecay(
    0.0, decay_steps=40, alpha=0.1, warmup_target=0.01, warmup_steps=10
)
model.compile(
    optimizer=keras.optimizers.SGD(
        schedule, momentum=0.9, nesterov=True, loss_scale_factor=4.0
    ),
    loss=squared_error,
    metrics=["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()],
)
history = model.fit(features, targets, epochs=4, validation_split=0.2, verbose=2)
print("r2:", history.history["val_r2_score"])
print("mean prediction:", float(np.mean(model.predict(features, verbose=0))))
