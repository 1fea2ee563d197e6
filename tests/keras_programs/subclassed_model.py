"""A model class with its own call, and float64 features."""

import keras
from sklearn.datasets import load_breast_cancer

keras.utils.set_random_seed(18)
features, targets = load_breast_cancer(return_X_y=True)
features = (features - features.mean(axis=0)) / features.std(axis=0)


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = [keras.layers.Dense(16, activation="relu") for _ in range(2)]
        self.dropout = keras.layers.Dropout(0.2)
        self.head = keras.layers.Dense(1, activation="sigmoid")

    def call(self, inputs, training=False):
        x = inputs
        for layer in self.hidden:
            x = self.dropout(layer(x), training=training)
        return self.head(x)


model = Classifier()
model.compile(
    optimizer=keras.optimizers.Nadam(clipvalue=0.5),
    loss=keras.losses.BinaryCrossentropy(label_smoothing=0.1),
    metrics=[keras.metrics.BinaryAccuracy(), keras.metrics.AUC()],
)
history = model.fit(features, targets, batch_size=64, epochs=3, validation_split=0.2)
print(history.history["val_auc"])
