"""Tests of --model=keras:NAME: the names, their models, and their refusals."""

import types

import keras
import numpy as np
import pytest

import models
from models import catalogue
from models.classification import ModelSpec
from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.config.model import ModelConfig
from trainers.inputs.sources import ArraySource, Data
from trainers.run_dir.training_dir import default_path


def exported() -> list[str]:
    """Returns the classifiers that an import of keras.applications shows."""
    found = vars(keras.applications).items()
    return sorted(name for name, v in found if isinstance(v, types.FunctionType))


def data_of(shape: tuple[int, ...]) -> Data:
    source = ArraySource(np.zeros([1, *shape], np.float32), np.zeros([1], np.int64))
    return Data(train=source, evaluation=source, input_shape=shape, num_classes=7)


def build(name: str, shape: tuple[int, ...]) -> keras.Model:
    spec: ModelSpec = models.load(f"keras:{name}")
    return spec.build(data_of(shape), ModelConfig())


def refusal(name: str, shape: tuple[int, ...]) -> str:
    with pytest.raises(ValueError, match=r"^--") as raised:
        build(name, shape)
    message = str(raised.value)
    assert message.isprintable()
    return message


def test_the_catalogue_is_what_keras_exports() -> None:
    assert list(catalogue.classifiers()) == exported()
    assert len(exported()) > 30


@pytest.mark.parametrize("name", exported())
def test_every_classifier_refuses_images_of_one_pixel_in_one_line(name: str) -> None:
    message = refusal(name, (1, 1, 3))
    assert message.startswith(f"--model=keras:{name} cannot take examples of shape")
    assert "--set=data.input_shape=" in message


def test_a_classifier_has_the_classes_of_the_data_and_new_weights() -> None:
    keras.utils.set_random_seed(0)
    model = build("MobileNetV2", (32, 32, 3))
    logits = model(np.random.default_rng(0).normal(size=[4, 32, 32, 3]) * 50)
    assert logits.shape == (4, 7)
    # Probabilities, in contrast to logits, would not be negative.
    assert float(np.min(logits)) < 0
    assert build("MobileNetV2", (32, 32, 1)).input_shape == (None, 32, 32, 1)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ((31, 32, 3), ("at least 32x32", "(31, 32, 3)")),
        ((32,), ("(32,)", "--model=mlp")),
    ],
)
def test_what_does_not_fit_is_named(
    shape: tuple[int, ...], named: tuple[str, ...]
) -> None:
    message = refusal("MobileNetV2", shape)
    assert "--model=keras:MobileNetV2" in message
    for words in named:
        assert words in message


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("keras:InceptonResNetV2", "near it: keras:InceptionResNetV2"),
        ("keras:resnet50", "near it: keras:ResNet50, "),
        ("keras:MobileNetV9", "keras:MobileNetV2"),
        ("keras:qqqqqq", "such as keras:ResNet50"),
        ("keras:", "such as keras:ResNet50"),
        ("keras:imagenet_utils", "classifiers of keras.applications"),
    ],
)
def test_a_name_that_is_none_lists_what_is_like_it(name: str, near: str) -> None:
    with pytest.raises(UsageError) as raised:
        Config().replace(model=name)
    message = str(raised.value)
    count = len(catalogue.classifiers())
    assert message.startswith(f"--model={name} is none of the {count} classifiers of")
    assert near in message


def test_a_name_without_the_prefix_is_spelled_with_it() -> None:
    with pytest.raises(UsageError, match=r"or keras:ResNet50, a classifier"):
        Config().replace(model="resnet50")


def test_the_folder_of_a_run_has_no_colon_in_its_name() -> None:
    name = default_path(Config().replace(model="keras:ResNet50")).name
    assert name.startswith("one_device-keras-ResNet50-digits-")
