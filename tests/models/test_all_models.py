"""Every model of this project: its initial weights, and what Keras reads back."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import pytest

import models
from trainers.config.model import ModelConfig
from trainers.inputs.sources import ArraySource, Data


def make_model(name: str, dropout: float) -> keras.Model:
    keras.utils.set_random_seed(0)
    has_ids = name == "wide_embedding"
    nothing = ArraySource(np.zeros([1, 4]), np.zeros([1], np.int64))
    data = Data(
        train=nothing,
        evaluation=nothing,
        input_shape=(4,) if has_ids else (8, 8, 3),
        num_classes=10,
        num_categories=5 if has_ids else None,
    )
    return models.load(name).build(data, ModelConfig(model=name, dropout=dropout))


@pytest.mark.parametrize("name", models.names())
def test_dropout_changes_no_initial_weight(name: str) -> None:
    """Runs with other fractions are compared from the same weights."""
    without, model = (make_model(name, rate) for rate in (0.0, 0.5))
    for expected, weight in zip(without.weights, model.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    layers = [x for x in model.layers if isinstance(x, keras.layers.Dropout)]
    assert len({layer.seed for layer in layers}) == len(layers) > 0


@pytest.mark.parametrize("name", models.names())
def test_a_file_has_the_model(name: str, tmp_path: pathlib.Path) -> None:
    model = make_model(name, dropout=0.5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    features = np.random.default_rng(0).integers(0, 5, (2, *model.input_shape[1:]))
    np.testing.assert_array_equal(again(features), model(features))
