"""The loss of a batch in Keras's own `fit`, where a step reports a metric alone."""

import keras
import numpy as np
import tensorflow as tf

from trainers.keras_program.keras_fit import LossOfFit


class ReportsItsError(keras.Model):
    """A model like https://keras.io/examples/keras_recipes/trainer_pattern."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(1)
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self):
        return [self.error]

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = keras.ops.mean(keras.ops.square(labels - predictions))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for metric in self.metrics:
            metric.update_state(labels, predictions)
        return {metric.name: metric.result() for metric in self.metrics}


def test_a_metric_of_labels_stands_for_the_loss() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = ReportsItsError()
    model.compile("sgd")
    model(x)
    losses = LossOfFit(model, "error")
    found, expected = [], []

    class Read(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rows = slice(4 * batch, 4 * batch + 4)
            expected.append(np.abs(y[rows] - model(x[rows]).numpy()).mean())

        def on_train_batch_end(self, batch, logs=None):
            found.append(losses.take())

    with losses.followed():
        model.fit(
            x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[Read()], epochs=1
        )
    # Means of float32, by NumPy and by TensorFlow.
    np.testing.assert_allclose(found, expected, rtol=1e-6)
