"""The data of a program's `fit` as a data set that strategies read."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.base import Weighted
from strategies.common.errors import UsageError
from strategies.common.private_apis import FitData, whole_arrays
from trainers.inputs.sources import ArraySource, Data
from trainers.keras_program.fit_arguments import FitArguments


def data_of_fit(arguments: FitArguments) -> Data:
    """Returns the examples to train and to validate on.

    Args:
      arguments: Arguments of `fit`.

    Raises:
      UsageError: They are of a kind that is not taken.
    """
    train = _read(
        arguments.x, arguments.y, arguments.sample_weight, arguments.class_weight
    )
    validation = None
    if arguments.validation_data is not None:
        validation = _read(
            *keras.utils.unpack_x_y_sample_weight(arguments.validation_data), None
        )
    elif arguments.validation_split:
        train, validation = _split(train, arguments.validation_split)
    features = train.features
    is_single = isinstance(features, np.ndarray)
    return Data(
        train=_source(train),
        evaluation=None if validation is None else _source(validation),
        input_shape=tuple(features.shape[1:]) if is_single else (),
        num_classes=0,
        is_shuffled=bool(arguments.shuffle),
    )


def _read(x: Any, y: Any, sample_weight: Any, class_weight: Any) -> FitData:
    try:
        found = whole_arrays(x, y, sample_weight, class_weight)
    except ValueError as error:
        raise UsageError(f"fit refuses its data: {error}") from error
    if found is None:
        found = _elements(x)
    if found.labels is None:
        raise UsageError(
            "fit has no labels (y): give some; a loss that needs none is not taken."
        )
    return found


def _elements(x: Any) -> FitData:
    """Reads a data set whole."""
    if not isinstance(x, tf.data.Dataset):
        raise UsageError(
            f"fit got data of type {type(x).__name__}: give arrays or a "
            "tf.data.Dataset."
        )
    if x.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UsageError(
            "fit got a tf.data.Dataset without an end: leave repeat() out."
        )
    batches = [
        keras.utils.unpack_x_y_sample_weight(batch) for batch in x.as_numpy_iterator()
    ]
    if not batches:
        raise UsageError("fit got a tf.data.Dataset without elements.")
    return FitData(
        *(
            None
            if parts[0] is None
            else tf.nest.map_structure(lambda *rows: np.concatenate(rows), *parts)
            for parts in zip(*batches, strict=True)
        )
    )


def _split(train: FitData, fraction: float) -> tuple[FitData, FitData]:
    """Divides examples as `fit` does: the last ones are for validation."""
    num_examples = len(tf.nest.flatten(train.features)[0])
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
    labels = data.labels
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
