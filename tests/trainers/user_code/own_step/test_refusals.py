"""A step of a model's own that cannot be computed anew in each pass is refused."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from tests.trainers.user_code.own_step.few import few_examples
from trainers.user_code.own_step.probe import own_step


class EverySecondStep(keras.Model):
    """Updates its weights in every second step only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(3)
        self.num_steps = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)

    def learn(self, data: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data, training=True)))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    def train_step(self, data: Any) -> dict[str, Any]:
        self.num_steps.assign(self.num_steps + 1)
        is_second = tf.equal(tf.convert_to_tensor(self.num_steps) % 2, 0)
        return {"loss": tf.cond(is_second, lambda: self.learn(data), lambda: 0.0)}


class CountsInALoop(EverySecondStep):
    """Updates its weights in each step, and counts in the body of a loop."""

    def train_step(self, data: Any) -> dict[str, Any]:
        def count(turn: tf.Tensor) -> tf.Tensor:
            self.num_steps.assign(self.num_steps + 1)
            return turn + 1

        tf.while_loop(lambda turn: turn < 2, count, [tf.zeros([], tf.int32)])
        return {"loss": self.learn(data)}


class LearnsTwice(EverySecondStep):
    """Updates its weights twice, with a loss that its optimizer may scale."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": self.learn(data) + self.learn(data)}


class LowersItsRate(EverySecondStep):
    """Assigns a variable of its optimizer, which only `fit` would keep."""

    def train_step(self, data: Any) -> dict[str, Any]:
        self.optimizer.learning_rate.assign(self.optimizer.learning_rate * 0.5)
        return {"loss": self.learn(data)}


class TrainsAnother(EverySecondStep):
    """Updates a layer that is no attribute of the model."""

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(_another(self(data))))
        weights = [*self.trainable_variables, *_another.trainable_variables]
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


_another = keras.layers.Dense(1)


class TrainsAVariable(EverySecondStep):
    """Updates a tf.Variable, which Keras does not count among the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(1.0, name="scale")

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.scale * tf.reduce_mean(tf.square(self(data)))
        weights = [*self.trainable_variables, self.scale]
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LowersItsRate, r"/learning_rate' of shape .* assigned"),
        (TrainsAnother, r"updates '.*/kernel' of shape \(3, 1\)"),
        (TrainsAVariable, r"updates 'scale:0' of shape \(\)"),
    ],
)
def test_a_variable_that_the_model_does_not_have_is_refused(
    kind: type[keras.Model], words: str
) -> None:
    model = kind()
    model.compile("sgd")
    with pytest.raises(UsageError, match=words):
        own_step(model, few_examples(), held_out=None)


def test_a_scale_of_the_loss_of_several_updates_is_refused() -> None:
    model = LearnsTwice()
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(UsageError, match="has a LossScaleOptimizer"):
        own_step(model, few_examples(), held_out=None)
    model.compile("sgd")
    assert own_step(model, few_examples(), held_out=None).num_passes == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [(EverySecondStep, "calls its optimizer in a branch"), (CountsInALoop, "assigns")],
)
def test_what_a_step_does_in_a_part_of_the_graph_is_refused(
    kind: type[keras.Model], words: str
) -> None:
    model = kind()
    model.compile(optimizer="sgd")
    with pytest.raises(UsageError, match=words):
        own_step(model, few_examples(), held_out=None)


class Scores(EverySecondStep):
    """Counts predictions that are normalized over a batch."""

    def __init__(self, counted: keras.metrics.Metric) -> None:
        super().__init__()
        self.normalize = keras.layers.BatchNormalization()
        self.counted = counted

    def call(self, inputs: Any, training: bool = False) -> Any:
        return keras.ops.sigmoid(self.normalize(self.inner(inputs), training=training))

    def train_step(self, data: Any) -> dict[str, Any]:
        self.counted.update_state(tf.round(data[:, :3]), self(data, training=True))
        return {"loss": self.learn(data), "counted": self.counted.result()}


class SeveralOutputs(keras.Model):
    """Leaves the step to Keras, which keeps the loss of each output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return {"first": self.first(inputs), "second": self.second(inputs)}

    def train_step(self, data: Any) -> dict[str, Any]:
        return super().train_step(data)


def test_losses_of_outputs_count_batches() -> None:
    """Keras counts the rows of an output whose shape is known, as in a probe alone."""
    model = SeveralOutputs()
    model.compile("sgd", {"first": "mse", "second": "mse"})
    few = few_examples()
    labels = dict.fromkeys(("first", "second"), few.features[:, :1])
    found = own_step(model, few._replace(labels=labels), held_out=None)
    counts = {own.metric.name: own.is_per_batch for own in found.train.metrics}
    assert counts["first_loss"]
    assert counts["second_loss"]
    assert found.remark is None


def test_counts_of_normalized_predictions_are_not_refused() -> None:
    """Two halves of a batch have other predictions, and other counts, then."""
    model = Scores(keras.metrics.TruePositives(thresholds=[0.2, 0.4, 0.5, 0.6, 0.8]))
    model.compile("sgd")
    found = own_step(model, few_examples(), held_out=None).train.metrics
    assert [own.is_per_batch for own in found if own.metric is model.counted] == [False]
