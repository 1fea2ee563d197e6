"""Opening of a program's data that are no arrays, as `fit` opens them."""

import contextlib
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.private_apis.fit_data import (
    data_adapter,
    first_batches,
    spec_of_batches,
    without_reading_ahead,
)
from strategies.common.text import one_line, shown
from trainers.keras_program.streams.passes import (
    OnePass,
    ReadPasses,
    passes_of_dataset,
    passes_of_reader,
    until_end,
    without_nones,
)
from trainers.keras_program.streams.random_state import random_state_kept
from trainers.keras_program.streams.shuffled import Shuffled
from trainers.keras_program.streams.stream import ProgramStream
from trainers.keras_program.streams.windows import tensors_of

# Features, labels and sample weights.
_MOST_PARTS = 3
# What Python has in place of an array.
_NO_ARRAYS = (bool, int, float, complex, str, bytes)
_MOST_CHARACTERS = 300


def open_stream(
    x: Any,
    steps: int | None,
    name: str,
    seed: int | None = None,
    given: Mapping[str, Any] = types.MappingProxyType({}),
    is_validation: bool = False,
) -> ProgramStream:
    """Opens data that are no arrays.

    Args:
      x: tf.data.Dataset, generator, keras.utils.PyDataset, torch DataLoader or Grain
        source of batches.
      steps: Number of batches of an epoch or a validation; None for all.
      name: Name of the data in messages.
      seed: Seed of the order of the batches of a PyDataset; None for their own order.
      given: Other arguments of `fit` for Keras's reader, by name.
      is_validation: True if a pass ends after `steps` batches, and if each iterator
        continues with the reader of the one before.

    Raises:
      UsageError: The data are of another kind, empty, or of unknown length.
    """
    if isinstance(x, types.GeneratorType):
        return _of_generator(x, steps, name, given)
    if isinstance(x, tf.data.Dataset):
        return _of_dataset(x, steps, name, given, is_validation)

    # A reader that is left in the middle of an epoch cannot begin another: the look
    # and each training have their own.
    def opened() -> Any:
        in_order = x
        if isinstance(x, keras.utils.PyDataset) and seed is not None:
            in_order = Shuffled(x, seed)
        return data_adapter(in_order, **given)

    with refusals_named(name), random_state_kept():
        adapter = opened()
        first_two = list(map(without_nones, first_batches(adapter)))
        full = _full_batch(first_two, name)
        num_batches = adapter.num_batches
        is_py_dataset = isinstance(x, keras.utils.PyDataset)
        if num_batches is None and is_py_dataset and steps is None:
            raise _endless(name)
        # Then an epoch begins where the one before has ended.
        is_endless = num_batches is None and bool(steps) and not is_validation
        if num_batches is None and not (is_py_dataset or is_endless):
            # The last step of the run has to be known at its start.
            batches = itertools.islice(adapter.get_numpy_iterator(), steps)
            num_batches = sum(1 for _ in batches)
    num_batches = _pass_length(num_batches, steps, is_validation)
    passes = ReadPasses(
        opened, num_batches, name, is_endless=is_endless, is_kept=is_validation
    )
    with refusals_named(name):
        spec = spec_of_batches(first_two)
    one_pass = passes_of_reader(passes.read, spec)
    return _stream(one_pass, full, num_batches)


def _of_dataset(
    x: tf.data.Dataset,
    steps: int | None,
    name: str,
    given: Mapping[str, Any],
    is_validation: bool,
) -> ProgramStream:
    with refusals_named(name):
        adapter = data_adapter(x, **given)
        dataset = adapter.get_tf_dataset()
        look = data_adapter(without_reading_ahead(x), **given).get_tf_dataset()
    # A data set may call Python code, as `from_generator` does.
    with random_state_kept():
        full = _full_batch(list(itertools.islice(look, 2)), name)
        is_endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        if is_endless and steps is None:
            raise _endless(name)
        num_batches = adapter.num_batches
        if num_batches is None and steps and not is_validation:
            # An epoch begins where the one before has ended.
            endless = dataset.repeat()
            return _stream(lambda index: endless, full, steps, is_one_pass=True)
        if num_batches is None:
            num_batches = sum(1 for _ in dataset.take(steps or -1))
    num_batches = _pass_length(num_batches, steps, is_validation)
    return _stream(passes_of_dataset(dataset, num_batches, name), full, num_batches)


def _pass_length(
    num_batches: int | None, steps: int | None, is_validation: bool
) -> int:
    """Returns the number of batches of a pass; it is given as None without an end."""
    if steps and (is_validation or num_batches is None):
        return min(steps, num_batches or steps)
    return num_batches or 0


def _endless(name: str) -> UsageError:
    return UsageError(
        f"fit has {name} without an end: give steps_per_epoch (or validation_steps)."
    )


def check_leaves(values: Any, name: str, *unfit: type) -> None:
    """Refuses numbers and texts of Python, and unfit tensors, among some data."""
    for leaf in keras.tree.flatten(values):
        if isinstance(leaf, unfit):
            raise UsageError(
                f"fit has {name} in a {type(leaf).__name__}, of which replicas cannot "
                "take rows: make them dense, as by tf.sparse.to_dense or "
                "RaggedTensor.to_tensor."
            )
        if isinstance(leaf, _NO_ARRAYS):
            raise UsageError(
                f"fit has {shown(repr(leaf))} in its {name}, where an array with a row "
                "for each example has to be: give lists as numpy.array."
            )


@contextlib.contextmanager
def refusals_named(name: str) -> Iterator[None]:
    """Turns what Keras refuses into an error of the user's.

    Raises:
      UsageError: Keras has refused the data.
    """
    try:
        yield
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        # Keras's message may have all of the data in it.
        words = one_line(error)[:_MOST_CHARACTERS]
        raise UsageError(f"fit refuses its {name}: {words}") from error


def _full_batch(batches: Sequence[Any], name: str) -> Any:
    """Returns the larger of the first two batches, as tensors.

    Shapes, types and the size of a batch are needed before there is a step. The first
    batch may be the smaller one from the end of the data: Keras shuffles the batches of
    a PyDataset.

    Raises:
      UsageError: There are no batches, or replicas cannot take rows of them.
    """
    for batch in batches:
        check_leaves(batch, name, tf.SparseTensor, tf.RaggedTensor)
    if not batches or not all(map(tensors_of, batches)):
        raise UsageError(f"fit has no batches in its {name}, or empty ones.")
    full = max(batches, key=lambda batch: tuple(tensors_of(batch)[0].shape[:1]))
    if isinstance(full, tuple) and len(full) > _MOST_PARTS:
        raise UsageError(
            f"fit has {name} in batches of {len(full)} parts: give x, (x, y) or "
            "(x, y, sample_weight)."
        )
    full = tf.nest.map_structure(tf.convert_to_tensor, full)
    sizes = {rows.shape[0] if rows.shape.rank else None for rows in tensors_of(full)}
    shapes = ", ".join(str(rows.shape) for rows in tensors_of(full))
    if None in sizes:
        raise UsageError(
            f"fit has {name} in which the elements are no batches, of shapes {shapes}: "
            "call batch()."
        )
    if len(sizes) > 1:
        raise UsageError(
            f"fit has {name} in which the tensors of a batch, of shapes {shapes}, have "
            "several numbers of rows, and a replica takes the same rows of each: give "
            "an example one row of each, such as by batch(4).batch(16) for 4 unlabeled "
            "images with each of 16 labeled ones."
        )
    return full


def _of_generator(
    x: Iterable[Any], steps: int | None, name: str, given: Mapping[str, Any]
) -> ProgramStream:
    if steps is None:
        raise UsageError(
            f"fit has a generator as its {name}, whose length is not known: give "
            "steps_per_epoch (or validation_steps), or a keras.utils.PyDataset."
        )
    batches = map(without_nones, x)
    first_two = list(itertools.islice(batches, 2))
    full = _full_batch(first_two, name)
    with refusals_named(name):
        data_adapter((batch for batch in first_two), **given)
        spec = spec_of_batches(first_two)
    # It can be read once: each validation continues where the last one ended.
    following = until_end(itertools.chain(first_two, batches), name)
    one_pass = passes_of_reader(lambda index: itertools.islice(following, steps), spec)
    return _stream(one_pass, full, steps)


def _stream(
    one_pass: OnePass, full: Any, num_batches: int, is_one_pass: bool = False
) -> ProgramStream:
    return ProgramStream(
        one_pass=one_pass,
        spec=one_pass(tf.zeros([], tf.int64)).element_spec,
        is_one_pass=is_one_pass,
        full_batch=full,
        batch_size=int(tensors_of(full)[0].shape[0]),
        num_batches=num_batches,
    )
