"""The data of a program's `fit` as a data set that strategies read."""

import types
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from models.objective import Weighted
from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import (
    FitData,
    shuffles_of,
    split_arrays,
    whole_arrays,
)
from strategies.common.text import shown
from strategies.config import StrategyConfig
from trainers.config.fault_tolerance import GuardConfig
from trainers.inputs.sources import (
    ArraySource,
    Data,
    NoExamples,
    Source,
    as_tuples,
    first_examples,
)
from trainers.keras_program.fit_arguments import FitArguments
from trainers.keras_program.streams.open_stream import (
    check_leaves,
    open_stream,
    refusals_named,
)
from trainers.keras_program.streams.stream import ProgramStream


def data_of_fit(arguments: FitArguments, seed: int) -> Data:
    """Returns the examples to train and to validate on; a seed orders batches.

    Raises:
      UsageError: They are of a kind that is not taken.
    """
    if all(part is None for part in keras.tree.flatten(arguments.x)):
        raise UsageError(
            "fit has no training data: give x, such as an array or a tf.data.Dataset."
        )
    examples = arguments.x, arguments.y, arguments.sample_weight
    _check_arrays(examples, "training data")
    weights = arguments.class_weight
    if weights is not None and not isinstance(weights, Mapping):
        raise UsageError(
            f"fit has {shown(repr(weights))} as its class_weight: give a "
            "dict of a weight by class."
        )
    held_out = None
    if arguments.validation_data is None and arguments.validation_split:
        # Before class weights become sample weights: validation has none.
        with refusals_named("data"):
            examples, validation = split_arrays(examples, arguments.validation_split)
        part = _arrays(*validation, None, "validation data")
        held_out = _first_batches(part, arguments)
    train = _arrays(*examples, arguments.class_weight, "training data")
    if train is not None:
        return _data(_source(train), held_out, arguments)
    others = {
        "y": arguments.y,
        "sample_weight": arguments.sample_weight,
        "class_weight": arguments.class_weight,
    }
    opened = open_stream(
        arguments.x,
        arguments.steps_per_epoch,
        "training data",
        seed if arguments.shuffle else None,
        others,
    )
    return _data(opened, None, arguments)


def check_streams(strategy: StrategyConfig, data: Data) -> None:
    """Refuses streams where replicas read any step on request.

    Raises:
      UsageError: The strategy reads streams, but not as it is configured.
    """
    declared = registry.traits(strategy.strategy).supports_streaming
    if not declared or strategy.traits.supports_streaming:
        return
    if any(isinstance(part, ProgramStream) for part in (data.train, data.evaluation)):
        raise UsageError(
            f"--update={strategy.update} of --strategy={strategy.strategy} does not "
            "fit data that are a stream, because replicas read any step on request: "
            "give arrays, or --update=sync."
        )


def check_rollback(guard: GuardConfig, arguments: FitArguments) -> None:
    """Refuses to go back with a generator, which cannot give its batches again.

    Raises:
      UsageError: A run that diverges would go back.
    """
    if guard.rolls_back and isinstance(arguments.x, types.GeneratorType):
        raise UsageError(
            "--on_divergence=rollback repeats steps, and fit has a generator as its "
            "training data, which is read once: give a tf.data.Dataset or a "
            "keras.utils.PyDataset, or --on_divergence=stop."
        )


def validates_on_nothing(arguments: FitArguments, data: Data) -> bool:
    """Returns whether a `fit` is given validation data without examples."""
    return arguments.validation_data is not None and not data.evaluation.num_examples


def shuffles_of_fit(arguments: FitArguments) -> set[int]:
    """Returns the ids of the shuffles of its data, as of `shuffles_of`."""
    both = arguments.x, arguments.validation_data
    streams = (data for data in both if isinstance(data, tf.data.Dataset))
    return set().union(*map(shuffles_of, streams))


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
        # Those to validate on may have no sample weights, or others.
        samples=train,
    )


def _validation(arguments: FitArguments) -> Source:
    given = arguments.validation_data
    if isinstance(given, tf.data.Dataset) and given.cardinality() == 0:
        return NoExamples()
    # Keras takes a pair of arrays or a data set, and a data set is a sequence too.
    if not isinstance(given, (tf.data.Dataset, keras.utils.PyDataset)):
        try:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(given)
        except ValueError as error:
            # Keras's message has all of the data in it.
            raise UsageError(
                f"fit has validation_data of {len(given)} parts: give (x, y) or "
                "(x, y, sample_weight)."
            ) from error
        _check_arrays((x, y, weights), "validation data")
        leaves = [leaf for leaf in keras.tree.flatten((x, y)) if leaf is not None]
        if all(tuple(getattr(leaf, "shape", ()))[:1] == (0,) for leaf in leaves):
            return NoExamples()
        arrays = _arrays(x, y, weights, None, "validation data")
        found = _first_batches(arrays, arguments)
        if found is not None:
            return _source(found)
    steps = arguments.validation_steps
    return open_stream(given, steps, "validation data", is_validation=True)


def _first_batches(found: FitData | None, arguments: FitArguments) -> FitData | None:
    """Returns the examples of `validation_steps` batches."""
    steps = arguments.validation_steps
    size = arguments.validation_batch_size or arguments.batch_size
    # Without a size Keras divides all examples by the number of steps.
    if found is None or steps is None or size is None:
        return found
    return FitData(
        *keras.tree.map_structure(
            lambda values: values[: steps * size], tuple(found), none_is_leaf=False
        )
    )


def _check_arrays(values: tuple[Any, Any, Any], name: str) -> None:
    """Refuses what has no row for each example; the data may be no arrays at all."""
    # NumPy would fill up the rows of a ragged one, and `fit` does not.
    check_leaves(values, name, tf.RaggedTensor)
    for part in values:
        leaves = keras.tree.flatten(part)
        if part is not None and any(leaf is None for leaf in leaves):
            raise UsageError(
                f"fit has None among the arrays of its {name}: leave it out."
            )
        if any(getattr(leaf, "shape", None) == () for leaf in leaves):
            raise UsageError(
                f"fit has an array of shape () in its {name}: give one with a row for "
                "each example."
            )


def _arrays(
    x: Any, y: Any, sample_weight: Any, class_weight: Any, name: str
) -> FitData | None:
    """Returns all examples of arrays; None for other data."""
    with refusals_named(name):
        return whole_arrays(x, y, sample_weight, class_weight)


def _source(data: FitData) -> ArraySource:
    # tf.data takes an empty structure, and no None.
    labels = () if data.labels is None else data.labels
    if data.weights is not None:
        labels = Weighted(labels, data.weights)
    return ArraySource(as_tuples(data.features), as_tuples(labels))
