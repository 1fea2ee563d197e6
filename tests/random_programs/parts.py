"""Layers, losses, metrics, data and models that programs made by chance import."""

import operator
import os
import pathlib
import signal

import keras
import numpy as np
import tensorflow as tf
from keras import ops

registered = keras.saving.register_keras_serializable()


@registered
class Penalty(keras.layers.Layer):
    """Scales its inputs, and adds a loss of them or of the scales."""

    def __init__(self, rate, is_of_inputs, **kwargs):
        super().__init__(**kwargs)
        self.rate, self.is_of_inputs = rate, is_of_inputs

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")

    def call(self, inputs):
        if self.is_of_inputs:
            self.add_loss(self.rate * ops.mean(ops.square(inputs)))
        else:
            self.add_loss(self.rate * ops.sum(ops.square(self.scale)))
        return inputs * self.scale

    def get_config(self):
        config = super().get_config()
        return {**config, "rate": self.rate, "is_of_inputs": self.is_of_inputs}


@registered
class Ramp(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.002 * (ops.cast(step, "float64") + 1)

    def get_config(self):
        return {}


def _error(labels, predictions):
    # [n] and [n, 1] would be compared as [n, n].
    shape = ops.shape(predictions)
    return ops.reshape(ops.cast(labels, predictions.dtype), shape) - predictions


@registered
def pinball(labels, predictions):
    error = _error(labels, predictions)
    return ops.mean(ops.maximum(0.7 * error, -0.3 * error), axis=-1)


@registered
def mean_of_squares(labels, predictions):
    return ops.mean(ops.square(_error(labels, predictions)))


@registered
def sums_of_squares(labels, predictions):
    return tf.reduce_sum(tf.square(_error(labels, predictions)), axis=-1)


@registered
def power_of_error(labels, predictions):
    return ops.abs(_error(labels, predictions)) ** 1.5


@registered
class MeanSize(keras.metrics.Metric):
    """Mean absolute prediction, kept in two variables."""

    def __init__(self, name="size", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, labels, predictions, sample_weight=None):
        sizes = ops.abs(predictions)
        self.total.assign_add(ops.cast(ops.sum(sizes), self.total.dtype))
        self.count.assign_add(ops.cast(ops.size(sizes), self.count.dtype))

    def result(self):
        return self.total / (self.count + 1e-7)


class Batches(keras.utils.PyDataset):
    def __init__(self, data, size):
        super().__init__()
        self.batches = list(batches(data, size))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def batches(data, size):
    count = len(tf.nest.flatten(data)[0])
    for first in range(0, count, size):
        part = slice(first, first + size)
        yield tf.nest.map_structure(operator.itemgetter(part), data)


def endless(data, size):
    while True:
        yield from batches(data, size)


def dataset(data):
    return tf.data.Dataset.from_tensor_slices(data)


def packed(x, y, weights):
    """Returns data as in one batch of `fit`; tf.data takes no lists of tensors."""
    parts = (x, y) if weights is None else (x, y, weights)
    return tuple(tuple(part) if isinstance(part, list) else part for part in parts)


class TapeModel(keras.Model):
    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions, weights)
        trained = self.trainable_variables
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, trained), trained, strict=True)
        )
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predictions, sample_weight=weights)
        return {metric.name: metric.result() for metric in self.metrics}


class TrackingModel(keras.Model):
    """Has a penalty, a metric of it, and a variable that it returns."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="total")
        self.num_steps = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        trained = self.trainable_variables
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions, weights)
            total = loss + 1e-3 * tf.add_n([tf.nn.l2_loss(w) for w in trained])
        self.optimizer.apply(tape.gradient(total, trained), trained)
        self.num_steps.assign_add(1.0)
        self.tracker.update_state(total)
        logs = self.compute_metrics(x, y, predictions, weights)
        return {**logs, "total": self.tracker.result(), "steps": self.num_steps}

    @property
    def metrics(self):
        return [*super().metrics, self.tracker]


class PenalizedModel(keras.Model):
    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        sizes = [ops.mean(ops.square(weight)) for weight in self.trainable_weights]
        return loss + 0.01 * sum(sizes)


class ReportingModel(keras.Model):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**results, "twice": 2 * results["loss"]}


class ModelWithoutMode(keras.Model):
    def call(self, inputs):
        return super().call(inputs)


class KillOnce(keras.callbacks.Callback):
    """Kills its process after a number of batches of all calls of fit, once."""

    num_batches = 0

    def __init__(self, last_batch):
        super().__init__()
        self.last_batch = last_batch

    def on_train_batch_end(self, batch, logs=None):
        KillOnce.num_batches += 1
        mark = pathlib.Path("killed")
        if KillOnce.num_batches == self.last_batch and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Logs(keras.callbacks.Callback):
    """Keeps the logs of each epoch."""

    def __init__(self):
        super().__init__()
        self.seen_logs = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen_logs.append({name: np.array(value) for name, value in logs.items()})
