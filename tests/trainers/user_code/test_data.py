"""Values that a factory of examples may return."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from tests.trainers.user_code import factories
from trainers.config.data import DataConfig
from trainers.config.model import ModelConfig
from trainers.inputs.sources import Source
from trainers.user_code.data import load
from trainers.user_code.model import custom_model


def loaded(name: str, **settings: Any) -> Any:
    return load(
        DataConfig(dataset=f"tests.trainers.user_code.factories:{name}", **settings)
    )


def all_of(source: Source) -> Any:
    indices = tf.range(source.num_examples, dtype=tf.int64)
    read = source.read(source.tensors(), indices)
    return tf.nest.map_structure(np.asarray, read)


@pytest.mark.parametrize("name", ["of_some_width", "of_any", "of_data", "stacked"])
def test_a_model_that_needs_no_argument_gets_none(name: str) -> None:
    settings = ModelConfig(model=f"tests.trainers.user_code.factories:{name}")
    data = loaded("arrays")
    model = custom_model(settings, data).build(data, settings)
    assert model.output_shape == (None, 3)


@pytest.mark.parametrize("name", ["train_and_eval", "datasets"])
def test_what_is_to_train_on_and_what_to_evaluate_on(name: str) -> None:
    data = loaded(name)
    features, labels = factories.arrays()
    np.testing.assert_array_equal(all_of(data.train)[0], features[:40])
    np.testing.assert_array_equal(all_of(data.train)[1], labels[:40])
    np.testing.assert_array_equal(all_of(data.evaluation)[0], features[40:])
    np.testing.assert_array_equal(all_of(data.evaluation)[1], labels[40:])
    assert (data.input_shape, data.num_classes) == ((5,), 3)
    assert all_of(data.train)[1].dtype == np.int64


@pytest.mark.parametrize("name", ["arrays", "reader"])
def test_a_part_is_held_out_if_there_is_one_of_them(name: str) -> None:
    data = loaded(name, eval_fraction=0.25)
    assert (data.train.num_examples, data.evaluation.num_examples) == (45, 15)
    features = np.concatenate([all_of(data.train)[0], all_of(data.evaluation)[0]])
    assert sorted(map(tuple, features)) == sorted(map(tuple, factories.arrays()[0]))
    again = loaded(name, eval_fraction=0.25)
    np.testing.assert_array_equal(all_of(again.train)[0], all_of(data.train)[0])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("batches_of_one_size", (60, 5)), ("batched_sequences", (60, 6, 4))],
)
def test_batches_are_taken_apart(name: str, shape: tuple[int, ...]) -> None:
    data = loaded(name)
    parts = [all_of(source)[0] for source in (data.train, data.evaluation)]
    assert np.concatenate(parts).shape == shape


def test_a_held_out_part_has_classes_in_proportion() -> None:
    data = loaded("arrays", eval_fraction=0.25)
    whole = np.bincount(factories.arrays()[1]) / 60
    part = np.bincount(all_of(data.evaluation)[1], minlength=3) / 15
    # To within one example of each class, of fifteen.
    np.testing.assert_allclose(part, whole, atol=1 / 15)


def test_several_arrays_of_features_and_of_labels() -> None:
    data = loaded("several")
    features, labels = all_of(data.train)
    assert {name: array.shape for name, array in features.items()} == {
        "first": (48, 2),
        "second": (48, 3),
    }
    assert {name: array.shape for name, array in labels.items()} == {
        "kind": (48,),
        "size": (48, 1),
    }
    assert data.num_classes == 0


def test_a_list_within_a_dictionary_stays_several_arrays() -> None:
    """tf.data would make one array of it, whose first axis is not of examples."""
    features, _ = all_of(loaded("reader_of_lists").train)
    assert [array.shape for array in features["pair"]] == [(48, 5)] * 2
    assert isinstance(features["pair"], tuple)


_WORDS = [["h\u00e9", "b\x00"], ["c", "\u00e9\x00"]] * 4


def strings() -> tf.data.Dataset:
    whole = tf.data.Dataset.from_tensor_slices((_WORDS, [row[1] for row in _WORDS]))
    return whole.map(lambda words, last: ((words, last), tf.strings.length(last)))


def test_strings_of_a_dataset_are_kept_to_the_last_byte() -> None:
    """Letters beyond ASCII were an error, and zeros at the end were lost."""
    name = "tests.trainers.user_code.test_data:strings"
    (words, last), _ = all_of(load(DataConfig(dataset=name, eval_fraction=0.5)).train)
    expected = {tuple(word.encode() for word in row) for row in _WORDS}
    assert set(map(tuple, words)) == expected
    assert list(last) == [row[1] for row in words]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("endless", "without an end"),
        ("sequences", r"may be batches, or .*: call unbatch\(\) of batches, or batch"),
        ("without_labels", "not pairs of features and labels"),
        ("unequal", "has arrays of 59 and 60 examples"),
        ("nothing", "returned None: return"),
        ("raising", r"failed \(KeyError: 'no such file'\)"),
        ("missing", "has no function missing; it has "),
    ],
)
def test_others_are_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        loaded(name)
    assert "\n" not in str(caught.value)
