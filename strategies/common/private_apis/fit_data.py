"""Private names of the data that `fit` takes."""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import (
    array_data_adapter,
    array_slicing,
    data_adapter_utils,
    py_dataset_adapter,
)
from tensorflow.python.data.ops import (
    batch_op,
    flat_map_op,
    from_tensor_slices_op,
    interleave_op,
    iterator_ops,
    padded_batch_op,
    prefetch_op,
    rebatch_op,
    unbatch_op,
    window_op,
)
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

from strategies.common.private_apis.replaced import replaced


class FitData(NamedTuple):
    """Data of `fit`, as its first step would get it.

    Attributes:
      features: Structure of arrays.
      labels: Structure of arrays; None for none.
      weights: Sample weights, in which class weights are included; None for 1 each.
    """

    features: Any
    labels: Any
    weights: Any


def data_adapter(x: Any, **given: Any) -> Any:
    """Returns Keras's reader of data of `fit` that are no arrays.

    It makes a tf.data.Dataset of tf.data, PyDataset, torch and Grain sources, and turns
    class weights into sample weights (keras/src/trainers/data_adapters/__init__.py,
    `get_data_adapter`).

    Args:
      x: The data.
      **given: Other arguments of `fit`, most of which such data refuse.

    Raises:
      ValueError, TypeError: Keras refuses the data.
    """
    with warnings.catch_warnings():
        # That shuffle is for the data set to do.
        warnings.simplefilter("ignore")
        return data_adapters.get_data_adapter(x, **given)


def first_batches(adapter: Any) -> list[Any]:
    """Returns the first two batches of Keras's reader, without reading ahead.

    The tf.data.Dataset of the reader reads on in the background, as many batches as
    there is time for. If reading draws random numbers or changes the data, what follows
    would be different in each process.

    Args:
      adapter: Reader of anything but a tf.data.Dataset.
    """
    most = data_adapter_utils.NUM_BATCHES_FOR_TENSOR_SPEC
    if not isinstance(adapter, py_dataset_adapter.PyDatasetAdapter):
        return list(itertools.islice(adapter.get_numpy_iterator(), most))
    # As in its get_tf_dataset: its iterator may start threads.
    batches = adapter.py_dataset
    count = most if batches.num_batches is None else min(most, batches.num_batches)
    return [adapter._standardize_batch(batches[index]) for index in range(count)]


def spec_of_batches(batches: Sequence[Any]) -> Any:
    """Returns the specification of tensors that Keras finds in the first batches.

    An axis in which they differ has any size (keras/src/trainers/data_adapters/
    data_adapter_utils.py, `get_tensor_spec`); other numbers of axes are a ValueError.
    """
    return data_adapter_utils.get_tensor_spec(list(batches))


def split_arrays(
    arrays: tuple[Any, Any, Any], fraction: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Divides x, y and sample weights as `validation_split` does, at the end.

    Raises:
      ValueError: Keras refuses the arguments.
    """
    return array_slicing.train_validation_split(arrays, fraction)


def whole_arrays(
    x: Any, y: Any, sample_weight: Any, class_weight: Any
) -> FitData | None:
    """Returns all examples of arguments of `fit` as NumPy arrays, or None.

    Keras takes arrays of several libraries, turns class weights into sample weights,
    and converts types (keras/src/trainers/data_adapters/array_data_adapter.py). None:
    the data are no arrays but a data set, a generator or the like.

    Raises:
      ValueError: Keras refuses the arguments, or there are no examples.
    """
    if not array_data_adapter.can_convert_arrays((x, y, sample_weight)):
        return None
    if class_weight is not None and y is None:
        raise ValueError("class_weight needs labels (y).")
    num_examples = keras.tree.flatten(x)[0].shape[0]
    adapter = array_data_adapter.ArrayDataAdapter(
        x,
        y,
        sample_weight=sample_weight,
        class_weight=class_weight,
        batch_size=num_examples,
        shuffle=False,
    )
    batch = next(iter(adapter.get_numpy_iterator()), None)
    if batch is None:
        raise ValueError("there are no examples.")
    return FitData(*data_adapter_utils.unpack_x_y_sample_weight(batch))


def shuffles_of(dataset: tf.data.Dataset) -> set[int]:
    """Returns the ids of the shuffles in a data set that draw a new order each time.

    Data sets that are made of one such shuffle share its seeds: each reader of either
    gets another order (tensorflow/python/data/ops/shuffle_op.py, `_ShuffleDataset`).
    """
    is_anew = getattr(dataset, "_reshuffle_each_iteration", False)
    own = {id(dataset)} if is_anew else set()
    return own.union(*map(shuffles_of, dataset._inputs()))


def having_shuffles(
    datasets: Iterable[tf.data.Dataset], shuffles: Collection[int]
) -> list[tf.data.Dataset]:
    """Returns the data sets with one of some shuffles, ids as of `shuffles_of`."""
    return [one for one in datasets if not shuffles_of(one).isdisjoint(shuffles)]


def iterated(found: list[tf.data.Dataset]) -> AbstractContextManager[None]:
    """Adds to a list each data set of which an iterator is made in the block."""

    def noting(_: str, create: Callable[..., None]) -> Callable[..., None]:
        def note_and_create(iterator: Any, dataset: tf.data.Dataset) -> None:
            found.append(dataset)
            create(iterator, dataset)

        return note_and_create

    return replaced(iterator_ops.OwnedIterator, ["_create_iterator"], noting)


@contextlib.contextmanager
def orders_kept() -> Iterator[None]:
    """Lets data sets that are made in the block give their elements in order.

    With `deterministic=False`, as an argument or in the options of a data set, parallel
    transformations give what threads have computed first. Options change only those
    that are made without the argument.
    """

    def in_order(_: str, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_in_order(*args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs | {"deterministic": "true"})

        return make_in_order

    with contextlib.ExitStack() as block:
        for place, names in _PARALLEL:
            block.enter_context(replaced(place, names, in_order))
        yield


_PARALLEL = (
    (
        gen_dataset_ops,
        (
            *("parallel_map_dataset_v2", "parallel_interleave_dataset_v4"),
            "parallel_batch_dataset",
        ),
    ),
    # Of tf.data.experimental: parallel_interleave, make_csv_dataset and the like.
    (
        gen_experimental_dataset_ops,
        ("legacy_parallel_interleave_dataset_v2", "parse_example_dataset_v2"),
    ),
)

# Transformations that make batches, and ones whose elements are no batches.
_BATCHED = (
    batch_op._BatchDataset,
    batch_op._ParallelBatchDataset,
    padded_batch_op._PaddedBatchDataset,
    rebatch_op._RebatchDataset,
)
_UNBATCHED = (
    from_tensor_slices_op._TensorSliceDataset,
    unbatch_op._UnbatchDataset,
)
_OF_FUNCTION = (
    flat_map_op._FlatMapDataset,
    interleave_op._InterleaveDataset,
    interleave_op._ParallelInterleaveDataset,
    window_op._WindowDataset,
)


def is_batched(dataset: tf.data.Dataset) -> bool | None:
    """Returns whether the elements of a data set are batches; None if unknown.

    The last transformation that makes or divides batches decides. No shape tells: a
    batch may have a known size, and a sequence an unknown one.
    """
    if isinstance(dataset, _BATCHED):
        return True
    if isinstance(dataset, _UNBATCHED):
        return False
    if isinstance(dataset, _OF_FUNCTION):
        # A function makes other elements, as that of `from_generator` does.
        return None
    # There is no public way to what a data set was made of.
    found = set(map(is_batched, dataset._inputs()))
    return found.pop() if len(found) == 1 else None


def reads_ahead(dataset: tf.data.Dataset) -> bool:
    """Returns whether a data set ends with a prefetch."""
    return isinstance(dataset, prefetch_op._PrefetchDataset)


def without_reading_ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set without the prefetches at its end, for a look at it.

    A prefetch reads on in the background after the last batch that is asked for. In
    `shuffle().batch().cache().prefetch()` it may fill the cache by then, or not: the
    batches of the training would depend on the time that the look takes.
    """
    while isinstance(dataset, prefetch_op._PrefetchDataset):
        (dataset,) = dataset._inputs()
    options = tf.data.Options()
    # TensorFlow adds a prefetch where there is none.
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)
