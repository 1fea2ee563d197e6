"""The data of a program's `fit` as a data set that strategies read."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from models.objective import Weighted
from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import FitData, shuffles_of, whole_arrays
from trainers.inputs.sources import (
    ArraySource,
    Data,
    NoExamples,
    Source,
    first_examples,
)
from trainers.keras_program.fit_arguments import FitArguments
from trainers.keras_program.open_stream import open_stream
from trainers.keras_program.stream import ProgramStream


def data_of_fit(arguments: FitArguments) -> Data:
    """Returns the examples to train and to validate on.

    Raises:
      UsageError: They are of a kind that is not taken.
    """
    given = arguments
    steps = given.steps_per_epoch
    train = _arrays(given.x, given.y, given.sample_weight, given.class_weight)
    if train is None:
        opened = open_stream(
            given.x, given.class_weight, given.shuffle, steps, "training data"
        )
        return _data(opened, None, given)
    held_out = None
    if given.validation_data is None and given.validation_split:
        train, held_out = _split(train, given.validation_split)
    return _data(_source(train), held_out, given)


def validates_on_shuffled(arguments: FitArguments) -> bool:
    """Returns whether training and validation data are parts of one shuffle."""
    both = arguments.x, arguments.validation_data
    if not all(isinstance(data, tf.data.Dataset) for data in both):
        return False
    return bool(set.intersection(*map(shuffles_of, both)))


def _data(train: Source, held_out: FitData | None, arguments: FitArguments) -> Data:
    validation: Source = NoExamples() if held_out is None else _source(held_out)
    if arguments.validation_data is not None:
        validation = _validation(arguments)
    features, _ = first_examples(train, 1)
    return Data(
        train=train,
        evaluation=validation,
        input_shape=() if tf.nest.is_nested(features) else tuple(features.shape[1:]),
        num_classes=0,
        # `fit` leaves the order of a data set to the data set.
        is_shuffled=bool(arguments.shuffle) and not isinstance(train, ProgramStream),
    )


def _validation(arguments: FitArguments) -> Source:
    given = arguments.validation_data
    # Keras takes a pair of arrays or a data set, and a data set is a sequence too.
    found = None
    if not isinstance(given, (tf.data.Dataset, keras.utils.PyDataset)):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(given)
        found = _arrays(x, y, weights, None)
    if found is not None:
        return _source(found)
    steps = arguments.validation_steps
    return open_stream(given, None, False, steps, "validation data")


def _arrays(x: Any, y: Any, sample_weight: Any, class_weight: Any) -> FitData | None:
    """Returns all examples of arrays; None for other data."""
    try:
        return whole_arrays(x, y, sample_weight, class_weight)
    except ValueError as error:
        raise UsageError(f"fit refuses its data: {error}") from error


def _split(train: FitData, fraction: float) -> tuple[FitData, FitData]:
    """Divides examples as `fit` does: the last ones are for validation."""
    num_examples = len(tf.nest.flatten(train.features)[0])
    # Rounded down, as in keras/src/trainers/data_adapters/array_slicing.py.
    first = int(num_examples * (1.0 - fraction))
    if not 0 < first < num_examples:
        raise UsageError(
            f"fit(validation_split={fraction}) of {num_examples} examples leaves none "
            "for one of the two parts: change the fraction."
        )

    def part(rows: slice) -> FitData:
        return FitData(
            *(
                None
                if values is None
                else tf.nest.map_structure(lambda value: value[rows], values)
                for values in train
            )
        )

    return part(slice(None, first)), part(slice(first, None))


def _source(data: FitData) -> ArraySource:
    # tf.data takes an empty structure, and no None.
    labels = () if data.labels is None else data.labels
    if data.weights is not None:
        labels = Weighted(labels, data.weights)
    return ArraySource(_as_tuples(data.features), _as_tuples(labels))


def _as_tuples(values: Any) -> Any:
    """Converts lists to tuples, because tf.data converts lists to tensors."""
    if isinstance(values, Weighted):
        return Weighted(*map(_as_tuples, values))
    if isinstance(values, dict):
        return {name: _as_tuples(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return tuple(map(_as_tuples, values))
    return values
