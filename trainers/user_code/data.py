"""Examples from a factory in the user's code."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from models import factories
from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import is_batched
from strategies.common.text import shown
from trainers.config.data import DataConfig
from trainers.inputs.sources import (
    ArraySource,
    Data,
    Source,
    as_tuples,
    train_eval_split,
)
from trainers.inputs.tfrecord.schema import LARGEST_LABEL
from trainers.user_code import kind_of, wrap_user_errors

_ACCEPTED = (
    "return (features, labels) as arrays, a tf.data.Dataset of such pairs, (number of "
    "examples, function of indices that reads them), or two of one kind, the second "
    "to evaluate on"
)

_SEVERAL_SHAPES = (
    f"returned examples of several shapes or types: {_ACCEPTED}, each array of one "
    "shape."
)
_WEIGHTS = (
    "Weights of examples are not taken: give the program that calls fit as --script."
)
# What steps can be given, by NumPy's kinds of types (numpy.dtype.kind): booleans,
# numbers, and strings, also those that `_array` leaves as objects.
_KINDS = "biufcSUO"


def load(config: DataConfig) -> Data:
    """Returns the examples of --dataset=package.module:factory.

    Raises:
      UsageError: There is no such factory, or its result is not accepted.
    """
    flag = f"--dataset={config.dataset}"
    with wrap_user_errors(flag):
        made = factories.factory(config.dataset, "dataset")()
    if isinstance(made, Data):
        return made
    try:
        with wrap_user_errors(flag):
            return _data(made, config.eval_fraction)
    except _Unusable as error:
        raise UsageError(f"{flag} {error}") from error


class _Unusable(UsageError):
    """An unusable result of a factory; the message begins with a verb."""


def _data(made: Any, eval_fraction: float) -> Data:
    if _is_two(made):
        train, evaluation = map(_source, made)
    else:
        train, evaluation = _held_out(_source(made), eval_fraction)
    if not train.num_examples or not evaluation.num_examples:
        raise _Unusable("returned no examples to train or to evaluate on.")
    for source in (train, evaluation):
        features, labels = source.read(source.tensors(), tf.zeros([1], tf.int64))
        _check_example(features, labels)
    num_classes = 0
    if not tf.nest.is_nested(features) and not tf.nest.is_nested(labels):
        counts = _num_classes(train), _num_classes(evaluation)
        num_classes = max(counts) if all(counts) else 0
    return Data(
        train=train,
        evaluation=evaluation,
        input_shape=() if tf.nest.is_nested(features) else tuple(features.shape[1:]),
        num_classes=num_classes,
    )


def _check_example(features: Any, labels: Any) -> None:
    """Refuses several rows, and examples without numbers: kernels end the process."""
    for name, values in (("features", features), ("labels", labels)):
        for array in tf.nest.flatten(values):
            if tuple(array.shape)[:1] != (1,):
                rows = array.shape[0] if array.shape else "no"
                raise _Unusable(
                    f"reads {rows} rows of {name} for one index: return a row for each "
                    "index."
                )
            if 0 in tuple(array.shape)[1:]:
                shape = ", ".join(map(str, array.shape[1:]))
                raise _Unusable(
                    f"returned {name} of shape [n, {shape}], in which there is no "
                    f"number: {_ACCEPTED}, with at least one in each example."
                )


def _is_two(made: Any) -> bool:
    """Returns whether a result is a pair of one kind: training and evaluation data."""
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        return False
    # A pair of datasets cannot be (features, labels): each has both.
    if all(isinstance(part, tf.data.Dataset) for part in made):
        return True
    if all(isinstance(part, tuple) and len(part) == 3 for part in made):
        raise _Unusable(f"returned two triples: {_ACCEPTED}. {_WEIGHTS}")
    return all(isinstance(part, tuple) and len(part) == 2 for part in made)


def _in_words(made: Any) -> str:
    """Returns what a factory returned, without its contents."""
    if isinstance(made, (tuple, list)):
        weights = f" ({_WEIGHTS})" if len(made) == 3 else ""
        return f"{len(made)} things{weights}"
    if isinstance(made, (np.ndarray, tf.Tensor)):
        shape = ", ".join(map(str, made.shape))
        return f"one array of shape [{shape}], without labels"
    return kind_of(made)


def _source(made: Any) -> Source:
    if isinstance(made, tf.data.Dataset):
        return _of_dataset(made)
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise _Unusable(f"returned {_in_words(made)}: {_ACCEPTED}.")
    first, second = made
    # (number of examples, function of indices).
    if isinstance(first, (int, np.integer)) and callable(second):
        return ReadSource(int(first), second)
    return ArraySource(_arrays(first), _arrays(second))


@dataclasses.dataclass(frozen=True, slots=True)
class ReadSource:
    """Examples that a function of the user reads; satisfies `Source`.

    Attributes:
      num_examples: Number of examples.
      function: Function from indices [n] to features and labels [n, ...]. It consists
        of TensorFlow operations, because every process computes it in its graph.
    """

    num_examples: int
    function: Callable[[tf.Tensor], tuple[Any, Any]]
    # Not known before it reads some.
    example_bytes = None

    def tensors(self) -> Any:
        # `read` needs no tensors of the data set.
        return tf.zeros([])

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        del tensors
        read = self.function(indices)
        if not isinstance(read, tuple) or len(read) != 2:
            raise _Unusable("reads something else than a pair of features and labels.")
        features, labels = read
        if any(isinstance(value, np.ndarray) for value in tf.nest.flatten(read)):
            raise _Unusable(
                "reads NumPy arrays, which every batch would share: return tensors, "
                "computed from the indices, such as by tf.gather."
            )
        return as_tuples(features), as_tuples(labels)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some examples of a source; satisfies `Source`."""

    source: Source
    positions: tf.Tensor

    @property
    def num_examples(self) -> int:
        return len(self.positions)

    @property
    def example_bytes(self) -> int | None:
        return self.source.example_bytes

    def tensors(self) -> Any:
        return self.source.tensors(), self.positions

    def read(self, tensors: Any, indices: tf.Tensor) -> tuple[Any, Any]:
        own, positions = tensors
        return self.source.read(own, tf.gather(positions, indices))


def _held_out(source: Source, fraction: float) -> tuple[Source, Source]:
    """Splits a source into training and held-out examples, equally in every run."""
    is_held_out = train_eval_split(source.num_examples, fraction, _ids(source))
    chosen = (~is_held_out, is_held_out)
    # Arrays are split once; other sources are read through a table of positions.
    if isinstance(source, ArraySource):
        arrays = tf.nest.map_structure(np.asarray, source.tensors())
        parts = [_rows(arrays, rows) for rows in chosen]
        return ArraySource(*parts[0]), ArraySource(*parts[1])
    with tf.device("/device:CPU:0"):
        positions = [tf.constant(np.flatnonzero(rows)) for rows in chosen]
    return _Part(source, positions[0]), _Part(source, positions[1])


def _rows(arrays: Any, chosen: np.ndarray) -> Any:
    return tf.nest.map_structure(lambda array: array[chosen], arrays)


def _ids(source: Source) -> np.ndarray | None:
    """Returns labels [num_examples] that may be ids of classes, if held in memory."""
    if not isinstance(source, ArraySource):
        return None
    _, labels = source.tensors()
    if (
        tf.nest.is_nested(labels)
        or labels.shape.rank != 1
        or not labels.dtype.is_integer
    ):
        return None
    return labels.numpy()


def _num_classes(source: Source) -> int:
    ids = _ids(source)
    if ids is None or ids.min() < 0 or ids.max() > LARGEST_LABEL:
        return 0
    return int(ids.max()) + 1


def _of_dataset(dataset: tf.data.Dataset) -> ArraySource:
    """Reads a whole dataset into memory, because a step reads any of its examples.

    Raises:
      UsageError: The dataset is infinite, or its elements differ in shape or type.
    """
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 2:
        raise _Unusable(
            "returned a tf.data.Dataset of elements that are not pairs of features and "
            f"labels: {_ACCEPTED}."
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise _Unusable(
            "returned a tf.data.Dataset without an end: leave repeat() out; epochs and "
            "their order are the run's."
        )
    specs = tf.nest.flatten(spec)
    for one in specs:
        if not isinstance(one, tf.TensorSpec):
            raise _Unusable(
                "returned a tf.data.Dataset with elements of "
                f"{type(one).__name__.removesuffix('Spec')}: turn them into dense "
                "tensors of one shape, such as by tf.sparse.to_dense or "
                "RaggedTensor.to_tensor."
            )
    dataset = _unbatched(dataset)
    # The whole dataset is held in memory from here.
    elements = list(dataset.as_numpy_iterator())
    if not elements:
        raise _Unusable("returned a tf.data.Dataset without elements.")
    try:
        features, labels = tf.nest.map_structure(_stacked, *elements)
    except ValueError as error:
        raise _Unusable(_SEVERAL_SHAPES) from error
    return ArraySource(_arrays(features), _arrays(labels))


def _stacked(*rows: Any) -> np.ndarray:
    """Returns values of examples as one array; strings stay what they are."""
    return np.array(rows, object) if isinstance(rows[0], bytes) else np.stack(rows)


def _unbatched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of examples.

    Raises:
      UsageError: It is not known whether the elements are examples or batches.
    """
    found = is_batched(dataset)
    specs = tf.nest.flatten(dataset.element_spec)
    if found is None and all(s.shape.rank and s.shape[0] is None for s in specs):
        raise _Unusable(
            "returned a tf.data.Dataset whose elements may be batches, or sequences of "
            "any length: call unbatch() of batches, or batch(1) of sequences."
        )
    return dataset.unbatch() if found else dataset


def _arrays(values: Any) -> Any:
    """Converts a structure of array-like values to arrays; ids become int64."""
    if isinstance(values, (list, tuple)) and all(
        isinstance(value, (np.ndarray, tf.Tensor)) for value in values
    ):
        return tuple(map(_arrays, values))
    if isinstance(values, Mapping):
        return {name: _arrays(value) for name, value in values.items()}
    array = _array(values)
    if not array.ndim:
        raise _Unusable(
            f"returned {shown(repr(values))} where an array is needed: {_ACCEPTED}."
        )
    # NumPy has no kind for bfloat16.
    is_known = array.dtype.kind in _KINDS or array.dtype == tf.bfloat16.as_numpy_dtype
    if not is_known:
        raise _Unusable(
            f"returned an array of {array.dtype}, which is neither numbers nor "
            "strings: turn it into numbers."
        )
    are_ids = array.dtype.kind in "iu" and array.ndim == 1
    return array.astype(np.int64) if are_ids else array


def _array(values: Any) -> np.ndarray:
    """Converts a value to an array of numbers or strings; refuses other objects.

    NumPy would iterate over any object with a length, and report an error within it.
    """
    if not isinstance(values, (list, tuple, int, float)) and not (
        hasattr(values, "__array__") or hasattr(values, "__array_interface__")
    ):
        raise _Unusable(
            f"returned {_in_words(values)} where an array is needed: {_ACCEPTED}."
        )
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _Unusable(_SEVERAL_SHAPES) from error
    if array.dtype == object:
        if all(isinstance(value, (str, bytes)) for value in array.flat):
            # NumPy's types of strings are for ASCII, or lose zeros at their end.
            return array
        raise _Unusable(_SEVERAL_SHAPES)
    return array
