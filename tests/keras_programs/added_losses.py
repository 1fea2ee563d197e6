"""Losses and a metric that layers add, and a metric class of one's own."""

import keras
from keras import ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(15)
images, labels = load_digits(return_X_y=True)


class Sparsity(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.active = keras.metrics.Mean(name="active")

    def call(self, inputs):
        self.add_loss(1e-2 * ops.mean(ops.abs(inputs)))
        self.active.update_state(inputs > 0)
        return inputs


class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(
            shape=(), name="ctp", initializer="zeros"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.argmax(y_pred, axis=1)
        values = ops.cast(y_true, "int32") == ops.cast(y_pred, "int32")
        self.true_positives.assign_add(ops.sum(ops.cast(values, "float32")))

    def result(self):
        return self.true_positives.value


model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(32, activation="relu", activity_regularizer="l1"),
        Sparsity(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.Adadelta(1.0),
    "sparse_categorical_crossentropy",
    metrics=[CategoricalTruePositives()],
)
history = model.fit(images, labels, batch_size=128, epochs=2)
print(history.history)
