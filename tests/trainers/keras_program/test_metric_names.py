"""Metrics with the names of other figures of a step."""

import pathlib

import numpy as np
import pytest

from models.objective import as_scalars
from tests import processes
from tests.event_files import read_events
from tests.trainers.keras_program.beside_fit import assert_as_by_fit, by_fit, under

_NAMES = (
    *("staleness", "dropped_gradients", "pipeline_seconds", "stage_busy_seconds/0"),
    *("not_finite", "own_finite_checks", "clock/start", "agreed/replicas"),
    "loss_scale",
)
_TEXT = f"""
import keras
import numpy as np

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.normal(size=(32, 4))
y = random.normal(size=(32, 1))
# In half precision the loss has a scale.
layers = [keras.layers.Dense(2, dtype="mixed_float16"), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((4,)), *layers])
metrics = [keras.metrics.MeanAbsoluteError(name=name) for name in {_NAMES}]
model.compile(keras.optimizers.SGD(0.0), "mse", metrics=metrics)
model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y))
"""


def test_a_metric_may_have_any_name(tmp_path: pathlib.Path) -> None:
    (found,) = under(tmp_path, _TEXT, "--strategy=tower", "--num_replicas=2")
    (plain,) = by_fit(tmp_path, _TEXT)
    assert set(found["history"]) == set(plain["history"])
    for name in _NAMES:
        # Equal here; float16 rounds by up to 5e-4, and halves may round otherwise.
        np.testing.assert_allclose(
            found["history"][name], plain["history"][name], rtol=1e-3
        )
    assert processes.result_of(tmp_path / "run")["staleness"] is None


def test_a_file_has_both_of_two_accuracies() -> None:
    """A single one is `accuracy` in files, whichever name `compile` was given."""
    both = {"acc": 0.5, "accuracy": 0.25}
    assert as_scalars(both) == both
    assert as_scalars({"acc": 0.5}) == {"accuracy": 0.5}


def test_the_scale_of_the_loss_is_not_in_the_history(tmp_path: pathlib.Path) -> None:
    text = _TEXT.replace(f"in {_NAMES}", "in ['error']")
    (found,) = under(tmp_path, text, "--strategy=one_device")
    expected = {"loss", "error", "val_loss", "val_error"}
    assert set(found["history"]) == expected
    rows = processes.metrics_of(tmp_path / "run")
    assert any("train_loss_scale" in row for row in rows)


_TAKEN = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(32, 4))
y = x.sum(axis=1, keepdims=True) > 0
output = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")
model = keras.Sequential([keras.Input((4,)), output])
names = ["learning_rate", "confusion_matrix"]
metrics = [keras.metrics.BinaryCrossentropy(name=name) for name in names]
model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=metrics)
model.fit(x, y, batch_size=16, epochs=1, validation_data=(x, y))
"""


def test_a_metric_and_a_figure_of_the_run_may_have_one_name(
    tmp_path: pathlib.Path,
) -> None:
    under(tmp_path, _TAKEN, "--strategy=one_device")
    folder = tmp_path / "run"
    final = processes.result_of(folder)["final"]
    loss = final["eval_loss"]
    train, held_out = (read_events(folder / "tb" / s) for s in ("train", "eval"))
    assert train.scalars("learning_rate") == {2: 0.0}
    assert "learning_rate" not in held_out.points
    assert held_out.points["confusion_matrix"][-1].plugin == "images"
    for name in ("learning_rate", "confusion_matrix"):
        assert train.scalars(f"metrics/{name}") == {2: pytest.approx(loss)}
        assert held_out.scalars(f"metrics/{name}") == {2: pytest.approx(loss)}
        row = processes.metrics_of(folder)[-1]
        assert row[f"eval_{name}"] == final[f"eval_{name}"] == pytest.approx(loss)


# As in Hands-On Machine Learning, chapter 10: a tuple of outputs without names.
_TWO_OF_A_NAME = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(32, 4))
y = x.sum(axis=1, keepdims=True)


class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.one = keras.layers.Dense(1, kernel_initializer="zeros")
        self.other = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs):
        return self.one(inputs), self.other(inputs * 2)


model = Two()
model.compile(
    "sgd", ["mse", "mse"], loss_weights=[0.9, 0.1], metrics=[["mae"], ["mae"]]
)
model.fit(x, (y, y), batch_size=16, epochs=2, validation_data=(x, (y, y)))
"""


def test_two_losses_may_have_one_name(tmp_path: pathlib.Path) -> None:
    (found,) = records = under(tmp_path, _TWO_OF_A_NAME, "--strategy=mirrored")
    (plain,) = expected = by_fit(tmp_path, _TWO_OF_A_NAME)
    assert_as_by_fit(records, expected)
    assert set(found["history"]) == set(plain["history"])
    assert "mse_loss" in plain["history"]
    for name, values in plain["history"].items():
        # Seen: 1e-16. Keras computes the loss in float32, with errors of 1e-7.
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-6)
