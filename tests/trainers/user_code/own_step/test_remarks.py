"""A step of a model's own that replicas cannot divide is named before the run."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from strategies.common.errors import UsageError
from tests.markers import further
from tests.trainers.user_code.own_step.few import few_examples
from trainers.config.config import Config
from trainers.loop.checks import check_own_step
from trainers.user_code.checks import has_own_step
from trainers.user_code.own_step.probe import own_step


class Projected(keras.Model):
    """Trains one layer by a loss of its outputs for noisy features."""

    def __init__(self, loss: Callable[[Any], Any]):
        super().__init__()
        self.noise = layers.GaussianNoise(0.1)
        self.project = layers.Dense(3)
        self.projection_loss = loss

    def call(self, x):
        return self.project(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            noisy = self.noise(data, training=True)
            loss = self.projection_loss(ops.normalize(self.project(noisy), axis=1))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return {"loss": loss}


def of_each(outputs):
    return ops.mean(ops.square(outputs - 1))


def of_others_in_the_batch(outputs):
    """Chen et al., A Simple Framework for Contrastive Learning, 2020."""
    similarities = ops.matmul(outputs, ops.transpose(outputs))
    places = ops.arange(ops.shape(outputs)[0])
    return ops.mean(
        keras.losses.sparse_categorical_crossentropy(
            places, similarities, from_logits=True
        )
    )


def noisy_twice(outputs):
    """Draws two numbers for each example, as for labels of real and made images."""
    both = ops.concatenate([outputs, outputs], axis=0)
    return both + keras.random.uniform((2 * outputs.shape[0], 1), seed=1)


def with_numbers_of_no_example(outputs):
    return of_each(noisy_twice(outputs))


def of_others_with_numbers_of_no_example(outputs):
    return of_others_in_the_batch(noisy_twice(outputs))


def with_numbers_of_tensorflow(outputs):
    return of_each(outputs + tf.random.uniform(tf.shape(outputs)))


def of_others_with_numbers_of_tensorflow(outputs):
    return of_others_in_the_batch(outputs + tf.random.uniform(tf.shape(outputs)))


def remark_of(loss: Callable[[Any], Any]) -> str | None:
    model = Projected(loss)
    model.compile(optimizer="sgd")
    return own_step(model, few_examples(), held_out=None).remark


@pytest.mark.parametrize(
    "loss",
    [
        of_others_in_the_batch,
        of_others_with_numbers_of_no_example,
        of_others_with_numbers_of_tensorflow,
    ],
)
def test_a_loss_of_the_others_in_a_batch_is_named(loss: Callable[[Any], Any]) -> None:
    remark = remark_of(loss)
    assert remark is not None
    assert "Projected.train_step" in remark


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("loss", [of_each, of_others_in_the_batch])
def test_a_loss_of_others_is_named_beside_a_normalization(
    loss: Callable[[Any], Any], is_training: bool
) -> None:
    """A layer that is not training takes its moving statistics."""
    model = Projected(loss)
    normalization = layers.BatchNormalization(synchronized=True)
    dense = model.project
    model.project = lambda x: dense(normalization(x, training=is_training))
    model.normalization = normalization
    model.compile(optimizer="sgd")
    found = own_step(model, few_examples(), held_out=None)
    assert found.normalizes == is_training
    assert (found.remark is None) == (loss is of_each)


@pytest.mark.parametrize("loss", [of_each, of_others_in_the_batch])
def test_a_loss_of_others_is_named_beside_normalized_nodes(
    loss: Callable[[Any], Any],
) -> None:
    """A layer may normalize what all batches share, such as the nodes of a graph."""
    model = Projected(loss)
    normalization = layers.BatchNormalization()
    dense = model.project
    nodes = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
    model.project = lambda x: dense(x) + ops.mean(normalization(nodes, training=True))
    model.normalization = normalization
    model.compile(optimizer="sgd")
    found = own_step(model, few_examples(), held_out=None)
    assert not found.normalizes
    assert (found.remark is None) == (loss is of_each)


class Spread(keras.Model):
    """Compares the examples of a batch when it evaluates."""

    def __init__(self):
        super().__init__()
        self.project = layers.Dense(3)
        self.pairs = keras.metrics.Mean(name="pairs")

    def call(self, x):
        return self.project(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = of_each(self(data, training=True))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return {"loss": loss}

    def test_step(self, data):
        outputs = self(data)
        self.pairs.update_state(ops.sum(ops.matmul(outputs, ops.transpose(outputs))))
        return {"pairs": self.pairs.result()}


class Reads(keras.Model):
    """Computes with the result of a metric.

    Args:
      purpose: Use of the result, `train`, `write` or `report`; or `mix`, to count
        values of examples beside their mean, `forget`, to leave it out of `metrics`,
        or `reset`, to count one batch.
    """

    def __init__(self, purpose: str):
        super().__init__()
        self.purpose = purpose
        self.project = layers.Dense(3)
        self.mean = keras.metrics.Mean(name="loss")
        self.kept = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return self.project(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = of_each(self(data, training=True))
            if self.purpose == "reset":
                self.mean.reset_state()
            self.mean.update_state(loss)
            if self.purpose == "train":
                loss = loss * tf.stop_gradient(self.mean.result())
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        if self.purpose == "write":
            self.kept.assign_add(2 * self.mean.result())
        else:
            self.kept.assign_add(loss)
        if self.purpose == "mix":
            self.mean.update_state(self(data))
        return {"loss": self.mean.result(), "root": ops.sqrt(self.mean.result())}

    @property
    def metrics(self):
        return [] if self.purpose == "forget" else super().metrics


@pytest.mark.parametrize("purpose", ["train", "write", "forget", "report"])
def test_a_metric_that_has_other_values_in_fit_is_named(purpose: str) -> None:
    """It is that of the epoch in `fit`, or of all, and of one step or epoch here."""
    model = Reads(purpose)
    model.compile(optimizer="sgd")
    found = own_step(model, few_examples(), held_out=None)
    assert (found.remark_of_any is None) == (purpose == "report")


def test_a_step_that_resets_a_metric_is_refused() -> None:
    """Its metric is that of the last batch in `fit`."""
    model = Reads("reset")
    model.compile(optimizer="sgd")
    with pytest.raises(UsageError, match="resets the metric 'loss'"):
        own_step(model, few_examples(), held_out=None)


class LeavesOutItsLoss(keras.Sequential):
    """Has only some metrics, which Keras's steps report."""

    @property
    def metrics(self):
        return [one for one in super().metrics if one.name != "loss"]


def test_a_step_reports_the_metrics_of_its_class() -> None:
    model = LeavesOutItsLoss([layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    few = few_examples()._replace(labels=few_examples().features[:, :1])
    assert has_own_step(model)
    found = own_step(model, few, held_out=few)
    assert found.test is not None
    assert found.train.sources.keys() == found.test.sources.keys() == {"mae"}
    assert found.remark_of_any is None


def test_a_metric_of_means_and_values_is_named_if_it_is_the_loss() -> None:
    """Keras's own `compiled_metrics` counts outputs in every mean of a model."""
    model = Reads("mix")
    model.compile(optimizer="sgd")
    remark = own_step(model, few_examples(), held_out=None).remark
    assert remark is not None
    assert "loss" in remark


def test_a_metric_of_pairs_is_named_when_only_the_evaluation_has_it() -> None:
    model = Spread()
    model.compile(optimizer="sgd")
    remark = own_step(model, few_examples(), held_out=few_examples()).remark
    assert remark is not None
    assert "pairs" in remark


@pytest.mark.parametrize(
    "loss", [of_each, with_numbers_of_no_example, with_numbers_of_tensorflow]
)
def test_nothing_is_said_of_random_numbers(loss: Callable[[Any], Any]) -> None:
    assert remark_of(loss) is None


class Deep(keras.Model):
    """Sums the errors of several layers in half precision."""

    def __init__(self, policy: str):
        super().__init__()
        self.hidden = [
            layers.Dense(64, activation="tanh", dtype=policy) for _ in range(4)
        ]
        self.last = layers.Dense(1)

    def call(self, x):
        for layer in self.hidden:
            x = layer(x)
        return self.last(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(self(data, training=True) - 1))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return {"loss": loss}


# Keras's own warning of it.
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_a_frozen_model_is_refused_for_its_weights() -> None:
    """Keras's step hands no gradients to an optimizer then."""
    model = keras.Sequential([layers.Dense(3)])
    model.compute_loss = lambda x, y, y_pred, *_, **__: of_each(y_pred)
    model.trainable = False
    model.compile(optimizer="sgd")
    with pytest.raises(UsageError, match="no weights to train"):
        own_step(model, few_examples(), held_out=None)


def test_nothing_is_known_of_parts_of_batches_of_one_size() -> None:
    model = Projected(of_others_in_the_batch)
    model.compile(optimizer="sgd")
    few = few_examples()
    objective = own_step(model, few, held_out=None, rows=int(few.num_rows))
    assert objective.remark is None
    check_own_step(objective, Config().replace(strategy="mirrored"), num_replicas=1)
    for settings in ({}, {"gradient_accumulation_steps": 2}):
        config = Config().replace(strategy="mirrored", **settings)
        with pytest.raises(UsageError, match="2 parts of a batch"):
            check_own_step(objective, config, num_replicas=2 // (len(settings) + 1))


# Of the two, bfloat16 has fewer digits.
@pytest.mark.parametrize("policy", [further("mixed_float16"), "mixed_bfloat16"])
def test_rounding_in_half_precision_is_allowed_for(policy: str) -> None:
    keras.utils.set_random_seed(0)
    model = Deep(policy)
    model.compile(optimizer="sgd")
    found = own_step(model, few_examples(), held_out=None)
    assert (found.is_sum, found.remark) == (True, None)


def of_normalized(outputs):
    moments = ops.moments(outputs, axes=[0])
    return ops.mean(ops.square((outputs - moments[0]) / ops.sqrt(moments[1] + 1) - 1))


@pytest.mark.parametrize("seeds", [(0, 1), further((2, 3, 4))], ids=str)
@pytest.mark.parametrize("is_sum", [False, True], ids=["mean", "sum"])
@pytest.mark.parametrize("loss", [of_others_in_the_batch, of_normalized])
def test_a_sum_over_examples_that_depend_on_each_other_is_a_sum(
    loss: Callable[[Any], Any], is_sum: bool, seeds: tuple[int, ...]
) -> None:
    def loss_of_batch(outputs):
        rows = ops.cast(ops.shape(outputs)[0], "float32")
        return loss(outputs) * (rows if is_sum else 1.0)

    for seed in seeds:
        keras.utils.set_random_seed(seed)
        model = Projected(loss_of_batch)
        model.noise.stddev = 0.0
        model.compile(optimizer="sgd")
        found = own_step(model, few_examples(), held_out=None)
        assert found.is_sum == is_sum, seed


class AddsLossOfRows(keras.Model):
    """A layer adds a loss for each example, as layers for CTC do; Keras sums them."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(3)

    def call(self, x):
        outputs = self.inner(x)
        self.add_loss(ops.mean(ops.square(outputs), axis=1))
        return outputs


def test_a_sum_that_a_metric_keeps_is_a_sum() -> None:
    model = AddsLossOfRows()
    model.compile(optimizer="sgd")
    train = own_step(model, few_examples(), held_out=None).train
    assert train.summed == ["loss"]
    assert [(own.is_per_batch, own.gets_sums) for own in train.metrics] == [
        (False, True)
    ]


class Noisy(AddsLossOfRows):
    """Draws in evaluations, too."""

    def __init__(self):
        super().__init__()
        self.noise = layers.GaussianNoise(1.0)

    def call(self, x):
        return super().call(self.noise(x, training=True))


class ReportsItsSum(AddsLossOfRows):
    """Reports numbers that it computes from the result of a metric."""

    def train_step(self, data):
        logs = super().train_step(data)
        rows = ops.cast(ops.shape(data)[0], "float32")
        return {**logs, "sum": logs["loss"] * rows, "half": logs["loss"] / 2}


def test_a_number_that_needs_the_size_of_a_batch_is_not_that_of_metrics() -> None:
    """The size was that of two examples in all batches."""
    model = ReportsItsSum()
    model.compile(optimizer="sgd")
    sources = own_step(model, few_examples(), held_out=None).train.sources
    assert (sources["sum"], sources["half"] is None) == (None, False)


class ReportsNumbers(Projected):
    """Returns numbers of a batch that are no results of metrics."""

    def train_step(self, data):
        logs = {"mean": ops.mean(data), "means": ops.mean(data, axis=0)}
        sums = {"sum": ops.sum(data), "rows": ops.shape(data)[0]}
        largest = ops.max(data)
        # Such as the norm of gradients that are nearly the same.
        others = {"largest": largest, "nearly": 1.0 + largest / 1000}
        updates = {"updates": self.optimizer.iterations}
        return {**super().train_step(data), **logs, **sums, **others, **updates}

    def test_step(self, data):
        return {"loss": of_each(self(data)), "spread": ops.std(self(data))}


def test_a_number_of_a_batch_that_is_no_mean_is_named() -> None:
    model = ReportsNumbers(of_each)
    model.compile(optimizer="sgd")
    remark = own_step(model, few_examples(), few_examples()).remark or ""
    found = re.findall(r": ([\w, ]+) of a batch is no mean", remark)
    assert found == ["largest, nearly", "spread"]


def test_batches_of_an_evaluation_draw_other_numbers() -> None:
    model = Noisy()
    model.compile(optimizer="sgd")
    few = few_examples()
    objective = own_step(model, few, few)
    losses = [
        float(objective.values(model, few._replace(step=step), False)["loss"][0])
        for step in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]
