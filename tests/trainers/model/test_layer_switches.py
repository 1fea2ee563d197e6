"""model.disable_layers on a model of the user's own, with layers inside layers."""

import keras
import numpy as np

from trainers.model.layer_switches import disable_layers


class Block(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.normalize = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.5)
        self.recurrent = keras.layers.LSTM(3, dropout=0.5)

    def call(self, inputs, training=False):
        hidden = self.normalize(inputs, training=training)
        return self.recurrent(self.drop(hidden, training=training))


def make_model() -> keras.Model:
    features = keras.Input((4, 5))
    hidden = keras.layers.GaussianNoise(1.0)(Block()(features))
    return keras.Model(features, hidden)


def outputs(model: keras.Model) -> list[np.ndarray]:
    features = np.random.default_rng(0).normal(3.0, 1.0, (8, 4, 5))
    return [np.asarray(model(features, training=True)) for _ in range(2)]


def test_without_it_dropout_is_random() -> None:
    first, second = outputs(make_model())
    assert not np.array_equal(first, second)


def test_nothing_is_random_without_dropout() -> None:
    model = make_model()
    disable_layers(model, ("dropout",))
    mean = next(v for v in model.non_trainable_variables if v.name == "moving_mean")
    before = mean.numpy()
    first, second = outputs(model)
    assert np.array_equal(first, second)
    assert not np.array_equal(mean.numpy(), before)


def test_statistics_stay_without_batch_normalization() -> None:
    model = make_model()
    disable_layers(model, ("batch_normalization",))
    mean = next(v for v in model.non_trainable_variables if v.name == "moving_mean")
    before = mean.numpy()
    first, second = outputs(model)
    assert np.array_equal(mean.numpy(), before)
    assert not np.array_equal(first, second)


class Sampling(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(0)

    def call(self, mean):
        return mean + keras.random.normal(keras.ops.shape(mean), seed=self.seed)


def test_a_layer_that_samples_in_inference_too_stays_as_it_is() -> None:
    features = keras.Input((4, 5))
    model = keras.Model(features, Sampling()(features))
    disable_layers(model, ("dropout",))
    first, second = outputs(model)
    assert not np.array_equal(first, second)
