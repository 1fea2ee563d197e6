"""Examples of unequal weight, in arrays and in validation data."""

import keras
import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

keras.utils.set_random_seed(8)
features, labels = load_wine(return_X_y=True)
features = StandardScaler().fit_transform(features)
order = np.random.permutation(len(labels))
features, labels = features[order], labels[order]
weights = np.where(labels == 2, 3.0, 1.0)

model = keras.Sequential(
    [
        keras.layers.Input((13,)),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(3),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adagrad(0.05),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    weighted_metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy()],
)
history = model.fit(
    features[:130],
    labels[:130],
    sample_weight=weights[:130],
    batch_size=32,
    epochs=3,
    validation_data=(features[130:], labels[130:], weights[130:]),
)
print(history.history)
