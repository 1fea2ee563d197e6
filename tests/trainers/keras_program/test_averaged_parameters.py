"""Programs under averaged parameters, which SGD averaged every step trains as `fit`."""

import pathlib

import numpy as np
import pytest

from tests.markers import further
from tests.trainers.keras_program.beside_fit import assert_as_by_fit, by_fit, under

_COPIES = ("--strategy=parameter_averaging", "--num_replicas=3")
_WORKERS = (
    *("--strategy=multi_worker_mirrored", "--average=parameters"),
    "--num_workers=2",
)
_SAME = "--sync_every_steps=1"

_DATA = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.normal(size=(40, 4))
y = x.sum(axis=1, keepdims=True)
inputs = keras.Input((4,))
"""
_CHANGED_BY_CALLBACKS = (
    _DATA
    + """
model = keras.Sequential([inputs, keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")

class Change(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.optimizer.learning_rate = 0.01
        if epoch == 1:
            self.model.set_weights([np.full((4, 1), 3.0), np.zeros(1)])

model.fit(x, y, batch_size=16, epochs=4, callbacks=[Change()])
"""
)
_SUMMED = (
    _DATA
    + """
model = keras.Sequential([inputs, keras.layers.Dense(1)])
loss = keras.losses.MeanSquaredError(reduction="sum")
model.compile(keras.optimizers.SGD(0.001), loss)
model.fit(x, y, batch_size=16, epochs=2)
"""
)
_MASKED = (
    _DATA
    + """
words = random.integers(1, 9, size=(40, 6))
words[:20, 2:] = 0
model = keras.Sequential([
    keras.Input((6,), dtype="int32"),
    keras.layers.Embedding(9, 4, mask_zero=True),
    keras.layers.Dense(5),
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), loss)
model.fit(words, words % 5, batch_size=16, epochs=2)
"""
)


@pytest.mark.parametrize("strategy", [_COPIES, further(_WORKERS)])
@pytest.mark.parametrize("text", [further(_SUMMED), _MASKED])
def test_a_loss_is_that_of_the_global_batch(
    tmp_path: pathlib.Path, text: str, strategy: tuple[str, ...]
) -> None:
    """Three replicas have 6, 5 and 5 of 16 examples, and most of the masked ones."""
    assert_as_by_fit(under(tmp_path, text, *strategy, _SAME), by_fit(tmp_path, text))


# The last test has assigned weights and a rate that is assigned.
@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", [_COPIES, _WORKERS])
def test_values_that_callbacks_assign_are_kept(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    found = under(tmp_path, _CHANGED_BY_CALLBACKS, *strategy, _SAME)
    assert_as_by_fit(found, by_fit(tmp_path, _CHANGED_BY_CALLBACKS))


def test_an_outer_optimizer_continues_from_assigned_weights(
    tmp_path: pathlib.Path,
) -> None:
    """The optimizer keeps an anchor between two averages, and nesterov a momentum."""
    text = _CHANGED_BY_CALLBACKS.replace("= 0.01", "= 0.0")
    flags = ("--outer_optimizer=nesterov", "--sync_every_steps=2")
    found = under(tmp_path, text, *_COPIES, *flags)
    (only,) = found
    kernel, bias = only["weights"]
    # Without a learning rate the weights stay as assigned.
    np.testing.assert_array_equal(kernel, np.full((4, 1), 3.0))
    np.testing.assert_array_equal(bias, np.zeros(1))
