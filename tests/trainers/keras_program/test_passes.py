"""Passes over a stream whose length is not known, and over a generator."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from trainers.keras_program.data import data_of_fit
from trainers.keras_program.fit_arguments import arguments_of_call
from trainers.keras_program.streams.open_stream import open_stream
from trainers.keras_program.streams.passes import ReadPasses
from trainers.keras_program.streams.stream import ProgramStream

_ROWS = np.zeros((4, 2), "float32")


def _dataset(lengths: Sequence[int]) -> tf.data.Dataset:
    """Returns numbered batches, as many in each pass as said; one pass counts them."""
    following = iter([2, lengths[0], *lengths])

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for index in range(next(following)):
            yield np.full((4, 2), index), np.zeros(4)

    return tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec((4, 2)), tf.TensorSpec((4,)))
    )


class _Batches(keras.utils.PyDataset):
    """Numbered batches, whose number changes after each epoch."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__()
        # `fit` calls `on_epoch_end` before the first epoch too.
        self._lengths = [lengths[0], *lengths]

    def __len__(self) -> int:
        return self._lengths[0]

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full((4, 2), index), np.zeros(4)

    def on_epoch_end(self) -> None:
        self._lengths = self._lengths[1:] or self._lengths


def _numbers(stream: ProgramStream, num_passes: int) -> Iterator[int]:
    for index in range(num_passes):
        for features, _ in stream.one_pass(tf.constant(index, tf.int64)):
            yield int(features[0, 0])


@pytest.mark.parametrize("kind", [_dataset, _Batches])
def test_each_pass_has_as_many_batches_as_the_first(kind: Any) -> None:
    """Keras leaves out what a later pass has beyond that."""
    opened = open_stream(kind((3, 5, 3)), None, "training data")
    assert opened.num_batches == 3
    assert list(_numbers(opened, 3)) == [0, 1, 2] * 3


@pytest.mark.parametrize("kind", [_dataset, _Batches])
def test_a_pass_that_ends_before_the_first_one_did_is_refused(kind: Any) -> None:
    opened = open_stream(kind((3, 2, 3)), None, "training data")
    following = _numbers(opened, 2)
    assert [next(following) for _ in range(5)] == [0, 1, 2, 0, 1]
    words = "training data of 3 batches in the first pass and fewer in a later one"
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"UsageError: fit .*{words}"
    ):
        next(following)


def test_data_that_have_ended_for_good_are_refused() -> None:
    """A reader may return the same iterator for each pass."""
    items = iter(range(3))

    class Reader:
        def get_tf_dataset(self) -> tf.data.Dataset:
            spec = tf.TensorSpec([], tf.int32)
            return tf.data.Dataset.from_generator(lambda: items, output_signature=spec)

        def on_epoch_begin(self) -> None: ...
        def on_epoch_end(self) -> None: ...

    passes = ReadPasses(Reader, 2, "training data", is_endless=True, is_kept=False)
    assert list(map(int, passes.read(0))) == [0, 1]
    with pytest.raises(UsageError, match="of 2 batches in the first pass and fewer"):
        list(passes.read(1))


def _validation(data: Any, steps: int) -> Any:
    model = keras.Sequential([keras.layers.Dense(2)])
    given = {"validation_data": data, "validation_steps": steps}
    arguments = arguments_of_call(type(model).fit, model, (_ROWS, _ROWS), given)
    return data_of_fit(arguments, 0).evaluation


@pytest.mark.parametrize(("steps", "num_batches"), [(2, 2), (3, 3), (9, 3)])
def test_a_validation_ends_with_data_of_unknown_length(
    steps: int, num_batches: int
) -> None:
    """Otherwise it would count the first examples again, and give no warning."""
    assert _validation(_dataset((3,)), steps).num_batches == num_batches


def test_a_validation_goes_on_in_a_generator() -> None:
    """The first two batches, of which shapes are taken, would be read every time."""

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            for index in range(4):
                yield np.full((4, 2), index), np.zeros(4)

    opened = _validation(batches(), 4)
    for _ in range(3):
        assert list(_numbers(opened, 1)) == [0, 1, 2, 3]
