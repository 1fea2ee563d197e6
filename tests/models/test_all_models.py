"""Every model of this project: its initial weights, and what Keras reads back."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest

import models
from models.base import Settings
from trainers.config.model import ModelConfig
from trainers.inputs.sources import ArraySource, Data


def make_model(name: str, settings: Settings) -> keras.Model:
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
    return models.load(name).build(data, settings)


@pytest.mark.parametrize("name", models.names())
def test_dropout_changes_no_initial_weight(name: str) -> None:
    """Runs with other fractions are compared from the same weights."""
    without, model = (
        make_model(name, ModelConfig(dropout=rate)) for rate in (0.0, 0.5)
    )
    for expected, weight in zip(without.weights, model.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    layers = [x for x in model.layers if isinstance(x, keras.layers.Dropout)]
    assert len({layer.seed for layer in layers}) == len(layers) > 0


@pytest.mark.parametrize("name", models.names())
def test_a_file_has_the_model(name: str, tmp_path: pathlib.Path) -> None:
    model = make_model(name, ModelConfig(dropout=0.5))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    features = np.random.default_rng(0).integers(0, 5, (2, *model.input_shape[1:]))
    np.testing.assert_array_equal(again(features), model(features))


class NotedSettings:
    """Settings that note which of them are read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(ModelConfig(dropout=0.5), name)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("SETTINGS: tuple = tuple('ab')", r"on line 2\)"),
        ("SETTINGS = 'dropout'", "SETTINGS is no tuple"),
        ("SETTINGS = (", "never closed"),
        ("# \0", "null bytes"),
    ],
)
def test_settings_that_cannot_be_read_are_refused(
    source: str, said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(f"SPEC = None\n{source}")
    monkeypatch.setattr(models, "__file__", str(tmp_path / "__init__.py"))
    models._settings_of.cache_clear()
    with pytest.raises(ValueError, match=rf"^models/odd\.py .*\(.*{said}"):
        models.using("dropout")()


@pytest.mark.parametrize("name", models.names())
def test_a_model_names_the_settings_that_it_reads(name: str) -> None:
    """Others are refused; see `used_by` in trainers/config/model.py."""
    settings = NotedSettings()
    make_model(name, settings)
    all_of_them = [n for n, v in vars(Settings).items() if isinstance(v, property)]
    assert settings.read == {n for n in all_of_them if name in models.using(n)()}
