"""Rare fraud: class weights, and metrics of counts (after keras.io)."""

import keras
import numpy as np
from sklearn.datasets import make_classification

keras.utils.set_random_seed(6)
features, targets = make_classification(
    2000, 12, n_informative=6, weights=[0.95], random_state=0
)
features = features.astype("float32")
targets = targets[:, np.newaxis].astype("uint8")
counts = np.bincount(targets[:, 0])
class_weight = {0: 1.0 / counts[0], 1: 1.0 / counts[1]}

model = keras.Sequential(
    [
        keras.Input(shape=features.shape[1:]),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss="binary_crossentropy",
    metrics=[
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.FalsePositives(name="fp"),
        keras.metrics.TrueNegatives(name="tn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
        keras.metrics.AUC(name="auc"),
        keras.metrics.AUC(name="prc", curve="PR"),
    ],
)
history = model.fit(
    features[:1500],
    targets[:1500],
    batch_size=300,
    epochs=5,
    verbose=2,
    validation_data=(features[1500:], targets[1500:]),
    class_weight=class_weight,
)
print({name: values[-1] for name, values in history.history.items()})
